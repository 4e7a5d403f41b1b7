package api

import (
	"net/http"

	"github.com/labstack/echo/v4"
)

// regions tells which share of each policy this region uses, and what all hold.
func (s *server) regions(c echo.Context) error {
	if s.Regions == nil {
		return &failure{status: http.StatusNotFound, kind: "not-found", detail: "this control plane shares its quotas with no other region: see --region-name"}
	}
	return c.JSON(http.StatusOK, s.Regions.View())
}
