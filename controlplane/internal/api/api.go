// Package api is the control plane's HTTP interface: REST for people and tools under /v1, binary messages for the filter under
// /node/v1. It alone knows the web framework.
package api

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"runtime"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/weir-proxy/weir/controlplane/internal/api/gen"
	"github.com/weir-proxy/weir/controlplane/internal/audit"
	"github.com/weir-proxy/weir/controlplane/internal/auth"
	"github.com/weir-proxy/weir/controlplane/internal/consumers"
	"github.com/weir-proxy/weir/controlplane/internal/decisions"
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
	Audit     audit.Store
	Decisions *decisions.Service
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

type server struct {
	Config
	contract *contract
}

// New returns the handler of all routes. The error is about the description of the interface, which is part of the build.
func New(config Config) (http.Handler, error) {
	contract, err := loadContract()
	if err != nil {
		return nil, err
	}
	s := &server{config, contract}
	e := echo.New()
	e.HideBanner, e.HidePort = true, true
	e.Use(identify, s.observe, s.obey)

	gen.RegisterHandlers(e, gen.NewStrictHandler(s, nil))
	e.GET("/metrics", echo.WrapHandler(s.Metrics.Handler()))
	if err := s.describe(e); err != nil {
		return nil, err
	}
	e.GET("/node/v1/snapshot", s.snapshot)
	e.POST("/node/v1/leases", s.leases)
	e.POST("/node/v1/report", s.report)
	e.POST("/node/v1/consumers", s.askConsumers)
	e.POST("/node/v1/decisions", s.noteDecisions)
	for _, r := range e.Routes() {
		if contract.operations[r.Method+" "+r.Path] == nil { // It would have no role.
			return nil, fmt.Errorf("%s %s is not described in api/openapi.yaml", r.Method, r.Path)
		}
	}
	return e, nil
}

// Healthz says that the process lives.
func (s *server) Healthz(context.Context, gen.HealthzRequestObject) (gen.HealthzResponseObject, error) {
	return gen.Healthz200JSONResponse{Status: gen.Ok}, nil
}

// Readyz says whether requests should be sent here.
func (s *server) Readyz(context.Context, gen.ReadyzRequestObject) (gen.ReadyzResponseObject, error) {
	if s.Stopping.Err() != nil {
		return nil, &failure{status: http.StatusServiceUnavailable, kind: "stopping", detail: "the control plane is shutting down"}
	}
	if err := s.Hub.Ready(); err != nil {
		return nil, &failure{status: http.StatusServiceUnavailable, kind: "store-unavailable", detail: reason(err), cause: err}
	}
	return gen.Readyz200JSONResponse{Status: gen.Ready}, nil
}

// Version tells the build.
func (s *server) Version(context.Context, gen.VersionRequestObject) (gen.VersionResponseObject, error) {
	return gen.Version200JSONResponse{Version: s.Config.Version, Go: runtime.Version()}, nil
}
