// Package rls answers Envoy's own ratelimit filter, and everything else that speaks
// envoy.service.ratelimit.v3, with the policies and buckets that the Weir filter uses.
//
// A policy that names descriptors is checked against each descriptor of a call. Any other policy is
// checked once, against the call as a whole. All limits must allow: a refused call is not charged.
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
	// atStore is the largest number of calls that ask the store at once. Further calls are decided
	// by this replica's share: overload is no way around a limit.
	atStore = 1024
)

// Leases grants tokens. *leases.Service implements it.
type Leases interface {
	Grant(ctx context.Context, req wire.LeaseRequest) (wire.LeaseReply, error)
}

// Config has the dependencies of a Service. Fields must be set unless they say otherwise.
type Config struct {
	Leases Leases
	// View returns the rules that decide calls, nil while there are none yet.
	View func() *calls.View
	// Consumers returns the consumers' records, for one call; nil if there are none.
	Consumers func(ctx context.Context) match.Consumers
	// Penalties are the penalties of callers; nil if there are none.
	Penalties *penalties.Enforcer
	// Report, if not nil, is called with the report about calls, about once a second. Report must
	// not keep the message.
	Report func(*wire.Decisions)
	// Tried, if not nil, is called for each call that a policy in shadow or a candidate limit would
	// have refused, and for each call that it could not decide.
	Tried func(policy string, candidate, undetermined bool)
	// Meter, if not nil, is called for each call and for each policy that had a part in it.
	Meter Meter
	// Metadata adds dynamic metadata to the answers of allowed calls too. It costs time.
	Metadata bool
	Now      func() time.Time
}

// Service answers calls. Make a Service with New. It is safe for concurrent use.
type Service struct {
	rlspb.UnimplementedRateLimitServiceServer
	config    Config
	decisions sync.Pool
	shares    shares
	failing   failing
	// nodes is the number of nodes that share the buckets, by the last answer of the store; 0
	// before.
	nodes    atomic.Int64
	asking   access.Places
	watching access.Places
	// together gathers the calls that wait to ask the store.
	together gather.Line[*asked]
	// looks are the looks of penalised calls.
	looks    looks
	recorder recorder
	// beside runs a function that no caller waits for.
	beside func(func())
}

// New makes a Service.
func New(c Config) *Service {
	s := &Service{config: c, asking: access.NewPlaces(atStore), watching: access.NewPlaces(atStore)}
	s.beside = func(f func()) { go f() }
	s.looks = looks{places: access.NewPlaces(looksAtOnce), callers: map[keyhash.Key][]*look{}}
	s.decisions.New = func() any { return &decision{} }
	s.recorder.beginMessage()
	s.together.Init(wire.MaxItems, gatherTime, s.grantTogether)
	if s.config.Meter == nil {
		s.config.Meter = noMeter{}
	}
	return s
}

// Register adds the service to a server.
func (s *Service) Register(with grpc.ServiceRegistrar) { rlspb.RegisterRateLimitServiceServer(with, s) }

// ShouldRateLimit implements rlspb.RateLimitServiceServer.
func (s *Service) ShouldRateLimit(ctx context.Context, in *rlspb.RateLimitRequest) (*rlspb.RateLimitResponse, error) {
	if err := checkCall(in); err != nil {
		return nil, err
	}
	view := s.config.View()
	if view == nil { // As an Envoy does before its first snapshot.
		s.config.Meter.Call(Unknown)
		return plainAnswer(in, rlspb.RateLimitResponse_OK), nil
	}
	d := s.decisions.Get().(*decision)
	defer s.decisions.Put(d)
	d.reset(s, view, in)
	return d.answerCall(ctx)
}

// checkCall refuses a call without a limit, like envoyproxy/ratelimit, or with too many limits.
func checkCall(in *rlspb.RateLimitRequest) error {
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

// plainAnswer returns an answer without limits.
func plainAnswer(in *rlspb.RateLimitRequest, code rlspb.RateLimitResponse_Code) *rlspb.RateLimitResponse {
	out := &rlspb.RateLimitResponse{OverallCode: code}
	statuses := make([]rlspb.RateLimitResponse_DescriptorStatus, len(in.Descriptors))
	out.Statuses = make([]*rlspb.RateLimitResponse_DescriptorStatus, len(in.Descriptors))
	for i := range statuses {
		statuses[i].Code = code
		out.Statuses[i] = &statuses[i]
	}
	return out
}
