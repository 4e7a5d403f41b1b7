// Package api is the control plane's HTTP interface: REST for people and tools under /v1, binary messages for the filter under
// /node/v1. It alone knows the web framework.
package api

import (
	"context"
	"log/slog"
	"net/http"
	"runtime"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/weir-proxy/weir/controlplane/internal/auth"
	"github.com/weir-proxy/weir/controlplane/internal/consumers"
	"github.com/weir-proxy/weir/controlplane/internal/leases"
	"github.com/weir-proxy/weir/controlplane/internal/metrics"
	"github.com/weir-proxy/weir/controlplane/internal/nodes"
	"github.com/weir-proxy/weir/controlplane/internal/policies"
	"github.com/weir-proxy/weir/controlplane/internal/push"
	"github.com/weir-proxy/weir/controlplane/internal/regions"
)

// Config is what the interface stands on. All fields but Regions must be set.
type Config struct {
	Policies  *policies.Service
	Consumers *consumers.Service
	Nodes     *nodes.Registry
	Leases    *leases.Service
	Hub       *push.Hub
	// Regions is nil for a control plane that shares its quotas with no other region.
	Regions *regions.Service
	Tokens  auth.Tokens
	Metrics *metrics.Metrics
	Log     *slog.Logger
	Now     func() time.Time
	// Stopping ends when the process does: long polls are answered at once, and /readyz says no.
	Stopping context.Context
	// Version is the build's.
	Version string
}

type server struct{ Config }

// New returns the handler of all routes.
func New(config Config) http.Handler {
	s := &server{config}
	e := echo.New()
	e.HideBanner, e.HidePort = true, true
	e.Use(identify, s.observe)

	e.GET("/healthz", s.healthz)
	e.GET("/readyz", s.readyz)
	e.GET("/version", s.version)
	e.GET("/metrics", echo.WrapHandler(s.Metrics.Handler()))

	view := []echo.MiddlewareFunc{s.need(auth.Viewer), bounded}
	e.GET("/v1/policyset", s.getPolicySet, view...)
	e.PUT("/v1/policyset", s.putPolicySet, s.need(auth.Editor), bounded)
	e.GET(policiesPath+":name", s.getPolicy, view...)
	e.PUT(policiesPath+":name", s.putPolicy, s.need(auth.Editor), bounded)
	e.PATCH(policiesPath+":name", s.patchPolicy, s.need(auth.Editor), bounded)
	e.DELETE(policiesPath+":name", s.deletePolicy, s.need(auth.Editor), bounded)
	e.GET("/v1/versions", s.listVersions, view...)
	e.GET("/v1/versions/:version", s.getVersion, view...)
	e.GET("/v1/versions/:version/diff", s.diffVersions, view...)
	e.POST("/v1/versions/:version/rollback", s.rollback, s.need(auth.Editor), bounded)
	e.GET("/v1/nodes", s.listNodes, view...)
	e.GET("/v1/regions", s.regions, view...)
	e.GET("/v1/consumers", s.listConsumers, view...)
	e.GET(consumersPath+":id", s.getConsumer, view...)
	e.PUT(consumersPath+":id", s.putConsumer, s.need(auth.Editor), bounded)
	e.DELETE(consumersPath+":id", s.deleteConsumer, s.need(auth.Editor), bounded)

	e.GET("/node/v1/snapshot", s.snapshot, s.need(auth.Node))
	e.POST("/node/v1/leases", s.leases, s.need(auth.Node))
	e.POST("/node/v1/report", s.report, s.need(auth.Node))
	e.POST("/node/v1/consumers", s.askConsumers, s.need(auth.Node))
	return e
}

func (s *server) healthz(c echo.Context) error {
	return c.JSON(http.StatusOK, map[string]string{"status": "ok"})
}

func (s *server) readyz(c echo.Context) error {
	if s.Stopping.Err() != nil {
		return &failure{status: http.StatusServiceUnavailable, kind: "stopping", detail: "the control plane is shutting down"}
	}
	if err := s.Hub.Ready(); err != nil {
		return &failure{status: http.StatusServiceUnavailable, kind: "store-unavailable", detail: reason(err), cause: err}
	}
	return c.JSON(http.StatusOK, map[string]string{"status": "ready"})
}

func (s *server) version(c echo.Context) error {
	return c.JSON(http.StatusOK, map[string]string{"version": s.Version, "go": runtime.Version()})
}
