package api

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/weir-proxy/weir/controlplane/internal/observe/series"
	"github.com/weir-proxy/weir/controlplane/internal/serve/api/gen"
	"github.com/weir-proxy/weir/shared/wire"
)

// steps are the lengths that a step may have.
var steps = map[gen.GetSeriesParamsStep]time.Duration{
	"10s": 10 * time.Second, "30s": 30 * time.Second, "1m": time.Minute, "5m": 5 * time.Minute,
	"30m": 30 * time.Minute, "1h": time.Hour,
}

// beforeRollout is for how long reports come that are about the time before: one covers five
// seconds, and leaves within one more.
const beforeRollout = 6 * time.Second

// noteMeasures adds the measures of a node's worker to the series of the policies in force.
func (s *server) noteMeasures(m *wire.Measures) {
	active, _ := s.config.Policies.Active()
	s.config.Series.Measured(m, active.Knows)
	if active.Draft != nil {
		// A report of the current version may be about the time before the rollout.
		earlier := s.config.Now().Sub(active.State.Rollout.Since) < beforeRollout
		s.config.Series.Compared(m, func(version uint64, name string) bool {
			return active.HasPolicy(version, name) && !(earlier && version == active.State.Current)
		})
	}
}

// GetSeries answers with the decisions over time.
func (s *server) GetSeries(ctx context.Context, r gen.GetSeriesRequestObject) (gen.GetSeriesResponseObject, error) {
	size, _, err := readPage(r.Params.PageSize, "")
	if err != nil {
		return nil, err
	}
	// Read the range, the step and the names.
	q := series.Query{
		By: series.By(cmp.Or(r.Params.By, "policy")), Kind: series.Fine, Range: time.Hour, Most: size,
	}
	span := cmp.Or(r.Params.Range, "1h")
	if span == "24h" {
		q.Kind, q.Range = series.Coarse, 24*time.Hour
	}
	q.Step = cmp.Or(steps[r.Params.Step], q.Kind.Step())
	switch {
	case q.Step < q.Kind.Step():
		return nil, badRequest("step must be 5m, 30m or 1h for a range of 24h")
	case len(r.Params.Policy) > 0 && q.By != series.ByPolicy || len(r.Params.Node) > 0 && q.By != series.ByNode:
		return nil, badRequest("policy needs by=policy, node needs by=node: nothing is counted by both")
	case q.By == series.ByNode:
		q.Names = r.Params.Node
	default:
		q.Names = r.Params.Policy
	}
	// Read the outcomes. The default is refusals.
	for _, outcome := range r.Params.Outcome {
		q.Outcomes = append(q.Outcomes, series.Outcome(outcome))
	}
	if q.Outcomes == nil {
		q.Outcomes = []series.Outcome{series.Refused}
	}
	if err := s.knowSeries(ctx, q); err != nil {
		return nil, err
	}
	found := s.config.Series.Read(q)
	return gen.GetSeries200JSONResponse{
		By: gen.SeriesAnswerBy(q.By), Range: gen.SeriesAnswerRange(span), StepSeconds: int64(q.Step / time.Second),
		From: found.From, Until: found.Until, Complete: found.Complete, Series: found.Series,
	}, nil
}

// knowSeries refuses names of which nothing is counted, and that are neither policies nor nodes.
func (s *server) knowSeries(ctx context.Context, q series.Query) error {
	counted := s.config.Series.Names(q.By)
	unknown := slices.DeleteFunc(slices.Clone(q.Names), func(name string) bool {
		return slices.Contains(counted, name)
	})
	if q.By != series.ByNode || len(unknown) == 0 {
		return s.knowPolicies(ctx, unknown...)
	}
	ctx, cancel := context.WithTimeout(ctx, askPatience)
	defer cancel()
	all, _ := s.config.Nodes.List(ctx)
	for _, one := range all {
		counted = append(counted, one.ID)
	}
	for _, name := range unknown {
		if !slices.Contains(counted, name) {
			return noName("node", name, "weir get nodes lists them", counted)
		}
	}
	return nil
}

// CompareSeries answers with the last minutes against an hour and a day ago.
func (s *server) CompareSeries(
	_ context.Context, r gen.CompareSeriesRequestObject,
) (gen.CompareSeriesResponseObject, error) {
	size, _, err := readPage(r.Params.PageSize, "")
	if err != nil {
		return nil, err
	}
	outcome := cmp.Or(r.Params.Outcome, "refused")
	found := s.config.Series.Compare(series.Outcome(outcome), size)
	return gen.CompareSeries200JSONResponse{
		Outcome: gen.SeriesComparisonOutcome(outcome), WindowSeconds: int64(series.Window / time.Second),
		Until: found.Until, Complete: found.Complete, All: found.All, Policies: found.Policies,
	}, nil
}
