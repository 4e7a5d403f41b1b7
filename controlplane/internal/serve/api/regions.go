package api

import (
	"context"
	"github.com/weir-proxy/weir/controlplane/internal/ground/errs"
	"github.com/weir-proxy/weir/controlplane/internal/serve/api/gen"
)

// GetRegions returns the share of each policy that this region uses, and the shares of all regions.
func (s *server) GetRegions(context.Context, gen.GetRegionsRequestObject) (gen.GetRegionsResponseObject, error) {
	if s.config.Regions == nil {
		return nil, &failure{code: errs.NotFound,
			detail: "this control plane shares its quotas with no other region: see --region-name"}
	}
	return gen.GetRegions200JSONResponse(s.config.Regions.View()), nil
}
