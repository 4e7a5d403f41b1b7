package api

import (
	"context"
	"time"

	"github.com/weir-proxy/weir/controlplane/internal/observe/series"
	"github.com/weir-proxy/weir/controlplane/internal/serve/api/gen"
)

// GetDistribution answers with how much the callers of a policy use.
func (s *server) GetDistribution(
	_ context.Context, r gen.GetDistributionRequestObject,
) (gen.GetDistributionResponseObject, error) {
	_, p, err := s.policyNamed(r.Name)
	if err != nil {
		return nil, err
	}
	if len(p.Limits) == 0 || p.Limits[0].Window <= 0 {
		return nil, badRequest("policy %s has no quota: there is no rate to tell callers apart by", r.Name)
	}
	limit, limits := p.Limits[0], r.Params.Limit
	if len(limits) == 0 {
		limits = []int64{limit.Quota}
	}
	window := time.Duration(limit.Window) * time.Microsecond
	d := s.config.Series.Distribution(r.Name, window, limit.Quota, limits)
	return gen.GetDistribution200JSONResponse{
		Policy: r.Name, WindowSeconds: window.Seconds(), Since: d.Since, Until: d.Until, Complete: d.Complete,
		Callers: d.Callers, Sampled: d.Sampled, Accuracy: series.Accuracy, Quantiles: d.Quantiles, Limits: d.Limits,
		Suggestion: d.Suggestion, Uncovered: d.Uncovered,
	}, nil
}
