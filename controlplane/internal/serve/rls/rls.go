// Package rls answers Envoy's own ratelimit filter, and everything else that speaks
// envoy.service.ratelimit.v3, out of the policies and buckets that the Weir filter uses.
//
// A policy that names descriptors is held against each descriptor of a call, and any other against
// the call as a whole, once. All limits must allow: a refused call is charged nowhere.
package rls

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	rlspb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/weir-proxy/weir/controlplane/internal/access"
	"github.com/weir-proxy/weir/controlplane/internal/fleet/penalties"
	"github.com/weir-proxy/weir/controlplane/internal/grant/gather"
	"github.com/weir-proxy/weir/controlplane/internal/serve/calls"
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/match"
	"github.com/weir-proxy/weir/shared/wire"
)

// Bounds of a call.
const (
	maxDescriptors = 64
	maxEntries     = 64
	// atStore is how many calls may ask the store at once. The others are decided by this replica's
	// share: overload is no way around a limit.
	atStore = 1024
)

// Leases grants tokens. *leases.Service implements it.
type Leases interface {
	Grant(ctx context.Context, req wire.LeaseRequest) (wire.LeaseReply, error)
}

// Config is what a Service stands on. Fields must be set unless they say otherwise.
type Config struct {
	Leases Leases
	// View returns what calls are decided by, nil while nothing is known yet.
	View func() *calls.View
	// Consumers returns what is known of the consumers, for one call; nil where there are none.
	Consumers func(ctx context.Context) match.Consumers
	// Penalties are those of callers; nil where there are none.
	Penalties *penalties.Enforcer
	// Report, if not nil, takes in what became of the calls, about once a second. Report must not
	// keep the message.
	Report func(*wire.Decisions)
	// Tried, if not nil, is called for each call that a policy in shadow, or a candidate limit,
	// would have refused, and for each of which that is undetermined.
	Tried func(policy string, candidate, undetermined bool)
	// Meter, if not nil, is called for each call and for each policy that had a part in it.
	Meter Meter
	// Metadata has allowed calls answered with dynamic metadata as others are, which costs.
	Metadata bool
	Now      func() time.Time
}

// Service answers calls. Make one with New. It is safe for concurrent use.
type Service struct {
	rlspb.UnimplementedRateLimitServiceServer
	config    Config
	decisions sync.Pool
	shares    shares
	failing   failing
	// nodes is how many nodes share the buckets, by the last answer of the store; 0 before it.
	nodes    atomic.Int64
	asking   access.Places
	watching access.Places
	// together is where calls gather that are to go to the store.
	together gather.Line[*asked]
	// looks are those of penalised calls.
	looks    looks
	recorder recorder
	// beside runs what no caller waits for.
	beside func(func())
}

// New makes a Service.
func New(c Config) *Service {
	s := &Service{config: c, asking: access.NewPlaces(atStore), watching: access.NewPlaces(atStore)}
	s.beside = func(f func()) { go f() }
	s.looks = looks{places: access.NewPlaces(looksAtOnce), callers: map[keyhash.Key][]*look{}}
	s.decisions.New = func() any { return &decision{} }
	s.recorder.begin()
	s.together.Init(wire.MaxItems, gatherTime, s.grantTogether)
	if s.config.Meter == nil {
		s.config.Meter = noMeter{}
	}
	return s
}

// Register has a server serve the service.
func (s *Service) Register(with grpc.ServiceRegistrar) { rlspb.RegisterRateLimitServiceServer(with, s) }

// ShouldRateLimit implements rlspb.RateLimitServiceServer.
func (s *Service) ShouldRateLimit(ctx context.Context, in *rlspb.RateLimitRequest) (*rlspb.RateLimitResponse, error) {
	if err := check(in); err != nil {
		return nil, err
	}
	view := s.config.View()
	if view == nil { // As an Envoy does before its first snapshot.
		s.config.Meter.Call(Unknown)
		return plain(in, rlspb.RateLimitResponse_OK), nil
	}
	d := s.decisions.Get().(*decision)
	defer s.decisions.Put(d)
	d.begin(s, view, in)
	return d.decide(ctx)
}

// check refuses a call that names no limit, as envoyproxy/ratelimit does, or too many.
func check(in *rlspb.RateLimitRequest) error {
	switch {
	case in.Domain == "":
		return status.Error(codes.InvalidArgument, "the call has no domain")
	case len(in.Descriptors) == 0:
		return status.Error(codes.InvalidArgument, "the call has no descriptors")
	case len(in.Descriptors) > maxDescriptors:
		return status.Errorf(codes.InvalidArgument, "the call has %d descriptors; at most %d are decided",
			len(in.Descriptors), maxDescriptors)
	}
	for _, d := range in.Descriptors {
		if len(d.GetEntries()) > maxEntries {
			return status.Errorf(codes.InvalidArgument, "a descriptor has %d entries; at most %d are decided",
				len(d.GetEntries()), maxEntries)
		}
	}
	return nil
}

// plain is an answer that says nothing of limits.
func plain(in *rlspb.RateLimitRequest, code rlspb.RateLimitResponse_Code) *rlspb.RateLimitResponse {
	out := &rlspb.RateLimitResponse{OverallCode: code}
	statuses := make([]rlspb.RateLimitResponse_DescriptorStatus, len(in.Descriptors))
	out.Statuses = make([]*rlspb.RateLimitResponse_DescriptorStatus, len(in.Descriptors))
	for i := range statuses {
		statuses[i].Code = code
		out.Statuses[i] = &statuses[i]
	}
	return out
}
