package api

import (
	"context"
	"net/http"

	"github.com/weir-proxy/weir/controlplane/internal/api/gen"
)

// GetRegions tells which share of each policy this region uses, and what all hold.
func (s *server) GetRegions(context.Context, gen.GetRegionsRequestObject) (gen.GetRegionsResponseObject, error) {
	if s.config.Regions == nil {
		return nil, &failure{status: http.StatusNotFound, kind: "not-found", detail: "this control plane shares its quotas with no other region: see --region-name"}
	}
	return gen.GetRegions200JSONResponse(s.config.Regions.View()), nil
}
