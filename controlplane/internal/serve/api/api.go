// Package api is the control plane's HTTP interface: REST for people and tools under /v1, binary
// messages for the filter under /node/v1. It alone knows the web framework.
package api

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/weir-proxy/weir/controlplane/internal/access"
	"github.com/weir-proxy/weir/controlplane/internal/access/auth"
	"github.com/weir-proxy/weir/controlplane/internal/fleet/nodes"
	"github.com/weir-proxy/weir/controlplane/internal/fleet/penalties"
	"github.com/weir-proxy/weir/controlplane/internal/fleet/push"
	"github.com/weir-proxy/weir/controlplane/internal/grant/leases"
	"github.com/weir-proxy/weir/controlplane/internal/grant/regions"
	"github.com/weir-proxy/weir/controlplane/internal/ground/audit"
	"github.com/weir-proxy/weir/controlplane/internal/ground/errs"
	"github.com/weir-proxy/weir/controlplane/internal/observe/decisions"
	"github.com/weir-proxy/weir/controlplane/internal/observe/metrics"
	"github.com/weir-proxy/weir/controlplane/internal/observe/series"
	"github.com/weir-proxy/weir/controlplane/internal/observe/tracing"
	"github.com/weir-proxy/weir/controlplane/internal/rules/consumers"
	"github.com/weir-proxy/weir/controlplane/internal/rules/enforcement"
	"github.com/weir-proxy/weir/controlplane/internal/rules/policies"
	"github.com/weir-proxy/weir/controlplane/internal/serve/api/gen"
)

// Config holds the services and the settings of the interface. Fields must be set unless they say
// otherwise.
type Config struct {
	Policies    *policies.Service
	Consumers   *consumers.Service
	Penalties   *penalties.Service
	Enforcement *enforcement.Service
	Audit       *audit.Held
	Decisions   *decisions.Service
	Series      *series.Service
	Nodes       *nodes.Registry
	Leases      *leases.Service
	Hub         *push.Hub
	// Regions is nil for a control plane that shares its quotas with no other region.
	Regions *regions.Service
	Tokens  *auth.Ring
	// TokenRate is the number of requests a second that one token may make under /v1. NodeRate is
	// the same for the nodes at one address under /node/v1. 0 means no limit.
	TokenRate, NodeRate int64
	// Proxies are the networks of proxies whose x-forwarded-for says where a request comes from.
	Proxies []netip.Prefix
	Metrics *metrics.Metrics
	// Tracing may be nil.
	Tracing *tracing.Tracing
	Log     *slog.Logger
	// Now returns the store's time, for the ends of bans, orders, penalties and tokens. Wall
	// returns this machine's time, for waits; nil means Now.
	Now, Wall func() time.Time
	// Clock says that this machine's clock is wrong, empty while it is not. It may be nil.
	Clock func() string
	// Neighbour says that another deployment uses the store, empty if none does. It may be nil.
	Neighbour func() string
	// Leaving ends when callers are to go elsewhere: /readyz says no.
	Leaving context.Context
	// Stopping ends when the process does: long polls are answered at once.
	Stopping context.Context
	// Dashboard is the address to which the console links; empty is no link.
	Dashboard string
	// Version is the version of the build.
	Version string
	// Distance returns the response time of the store; nil for a store in this process.
	Distance func() time.Duration
	// Unsaved says why the store cannot save its counters, nil while it can. It may be nil.
	Unsaved func() error
	// WrongFiles returns the settings whose files cannot be used now, each with the reason. The
	// reason has nothing of the file's content. It may be nil.
	WrongFiles func() map[string]string
}

type server struct {
	config   Config
	contract *contract
	bounds   *bounds
	// followers are the callers that wait for changes.
	followers access.Places
}

// New returns the handler of all routes. The error is about the description of the interface, which
// is part of the build, or about the rates.
func New(config Config) (http.Handler, error) {
	s, err := newServer(config)
	if err != nil {
		return nil, err
	}
	return s.newHandler(s.forPeople, s.forNodes)
}

// Apart makes the handler for people and tools, and a second handler for nodes and probes.
func Apart(config Config) (people, nodes http.Handler, err error) {
	s, err := newServer(config)
	if err != nil {
		return nil, nil, err
	}
	people, err = s.newHandler(s.forPeople)
	if err != nil {
		return nil, nil, err
	}
	nodes, err = s.newHandler(s.forNodes, s.forProbes)
	return people, nodes, err
}

func newServer(config Config) (*server, error) {
	contract, err := loadContract()
	if err != nil {
		return nil, err
	}
	if config.Wall == nil {
		config.Wall = config.Now
	}
	bounds, err := newBounds(config)
	return &server{config, contract, bounds, access.NewPlaces(maxFollowers)}, err
}

// newHandler makes a handler with the routes that the functions in add register.
func (s *server) newHandler(add ...func(*echo.Echo) error) (http.Handler, error) {
	e := echo.New()
	e.HideBanner, e.HidePort = true, true
	e.Use(identifyRequest, s.setSafeHeaders, s.observeRequest, s.obeyContract)
	for _, add := range add {
		if err := add(e); err != nil {
			return nil, err
		}
	}
	for _, r := range e.Routes() {
		if s.contract.operations[r.Method+" "+r.Path] == nil { // It would have no role.
			return nil, fmt.Errorf("%s %s is not described in api/openapi.yaml", r.Method, r.Path)
		}
	}
	return withHead{e}, nil
}

// forProbes adds the routes by which Envoys ask whether this replica serves.
func (s *server) forProbes(e *echo.Echo) error {
	probes := gen.ServerInterfaceWrapper{Handler: gen.NewStrictHandler(s, nil)}
	e.GET("/healthz", probes.Healthz)
	e.GET("/readyz", probes.Readyz)
	e.GET("/readyz/store", probes.ReadyzStore)
	return nil
}

func (s *server) forPeople(e *echo.Echo) error {
	gen.RegisterHandlers(e, gen.NewStrictHandler(s, nil))
	e.GET("/metrics", echo.WrapHandler(s.config.Metrics.Handler()))
	s.forConsole(e)
	return serveDescription(e)
}

func (s *server) forNodes(e *echo.Echo) error {
	e.GET("/node/v1/snapshot", s.snapshot)
	e.POST("/node/v1/leases", s.leases)
	e.POST("/node/v1/report", s.report)
	e.POST("/node/v1/consumers", s.askConsumers)
	return nil
}

// Healthz says that the process lives.
func (s *server) Healthz(context.Context, gen.HealthzRequestObject) (gen.HealthzResponseObject, error) {
	return gen.Healthz200JSONResponse{Status: gen.Ok}, nil
}

// Readyz reports whether this replica can serve Envoys. It can while its store is away: policies,
// orders and bans come from memory, and the shards of a cluster that live grant tokens.
func (s *server) Readyz(context.Context, gen.ReadyzRequestObject) (gen.ReadyzResponseObject, error) {
	var more []string
	if away := s.config.Hub.Ready(); away != nil {
		more = append(more, "cannot read changes from the store, "+
			"Envoys get the last state that this replica read: "+followError(away))
	}
	state, err := s.probeState(s.config.Hub.Loaded(), more...)
	return gen.Readyz200JSONResponse(state), err
}

// ReadyzStore reports whether this replica also reaches its store. Callers should prefer it to a
// replica that does not.
func (s *server) ReadyzStore(
	ctx context.Context, _ gen.ReadyzStoreRequestObject,
) (gen.ReadyzStoreResponseObject, error) {
	notReady := s.config.Hub.Ready()
	if notReady == nil {
		notReady = s.config.Leases.Works(ctx)
	}
	state, err := s.probeState(notReady)
	return gen.ReadyzStore200JSONResponse(state), err
}

// probeState returns the answer of a probe. If notReady is not nil, it is the reason to say no.
// more holds the probe's own warnings.
func (s *server) probeState(notReady error, more ...string) (gen.State, error) {
	if s.config.Leaving.Err() != nil {
		return gen.State{}, &failure{code: errs.Stopping, quiet: true}
	}
	if notReady != nil {
		return gen.State{}, &failure{code: errs.StoreUnavailable, detail: followError(notReady), cause: notReady,
			quiet: true}
	}
	return gen.State{Status: gen.Ready, Warning: strings.Join(append(s.listWarnings(), more...), "; ")}, nil
}

// listWarnings returns the problems that this control plane has though it serves, a sentence each.
func (s *server) listWarnings() (all []string) {
	c := s.config
	if c.Distance != nil {
		all = append(all, distanceWarning(c.Distance()))
	}
	all = append(all, s.clockWarning())
	if c.Neighbour != nil {
		all = append(all, c.Neighbour())
	}
	if c.Unsaved != nil {
		if err := c.Unsaved(); err != nil {
			all = append(all, "the counters cannot be saved, a crash now would lose them: "+followError(err))
		}
	}
	if c.WrongFiles != nil {
		wrong := c.WrongFiles()
		for _, name := range slices.Sorted(maps.Keys(wrong)) {
			all = append(all, "the file of "+name+" is "+wrong[name])
		}
	}
	return slices.DeleteFunc(all, func(text string) bool { return text == "" })
}

// near is the longest response time of a store at which waiting requests are answered in time,
// however busy the control plane is. It is two fifths of the time that a request waits.
const near = 20 * time.Millisecond

// distanceWarning returns the warning that the store is too far: requests that wait for it are not
// answered in time. It is empty for a store that is near.
func distanceWarning(by time.Duration) string {
	if by < near {
		return ""
	}
	return fmt.Sprintf("Redis takes %d ms to answer: requests that must ask it wait for up to 50 ms, and then "+
		"their Envoy's share decides; bring it within %d ms", by.Milliseconds(), near.Milliseconds())
}

func (s *server) clockWarning() string {
	if s.config.Clock == nil {
		return ""
	}
	return s.config.Clock()
}

// Version answers with the version of the build.
func (s *server) Version(context.Context, gen.VersionRequestObject) (gen.VersionResponseObject, error) {
	return gen.Version200JSONResponse{Version: s.config.Version, Go: runtime.Version()}, nil
}
