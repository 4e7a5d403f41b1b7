package rlqs

import (
	"sync"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/rate_limit_quota/v3"
	typepb "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/weir-proxy/weir/shared/quota"
)

// outbox keeps the unsent actions for one filter. It keeps only the newest action for each bucket,
// so that it never holds more actions than the filter has buckets.
type outbox struct {
	filled chan struct{}

	mu      sync.Mutex
	actions []Action
	places  map[string]int
}

func newOutbox() *outbox { return &outbox{filled: make(chan struct{}, 1), places: map[string]int{}} }

// Offer implements Outlet.
func (o *outbox) Offer(actions []Action) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, a := range actions {
		if at, waits := o.places[a.ID.Name]; waits {
			o.actions[at] = a
			continue
		}
		o.places[a.ID.Name] = len(o.actions)
		o.actions = append(o.actions, a)
	}
	select {
	case o.filled <- struct{}{}:
	default:
	}
}

// take empties the outbox.
func (o *outbox) take() []Action {
	o.mu.Lock()
	defer o.mu.Unlock()
	actions := o.actions
	o.actions = nil
	clear(o.places)
	return actions
}

// messagesFor returns the messages to the filter for an action.
//
// Tokens need two messages. If the next assignment is a bucket too, the filter keeps the tokens
// that the bucket has left, or a part of them. After a refusal of everything it starts a new
// bucket, which is full. It takes both messages in one step, so the first message refuses no
// request.
func messagesFor(a Action) []*pb.RateLimitQuotaResponse_BucketAction {
	switch a.Kind {
	case Abandon:
		return []*pb.RateLimitQuotaResponse_BucketAction{{
			BucketId: a.ID.message(),
			BucketAction: &pb.RateLimitQuotaResponse_BucketAction_AbandonAction_{
				AbandonAction: &pb.RateLimitQuotaResponse_BucketAction_AbandonAction{},
			},
		}}
	case Allow:
		return []*pb.RateLimitQuotaResponse_BucketAction{a.blanket(typepb.RateLimitStrategy_ALLOW_ALL)}
	case Deny:
		return []*pb.RateLimitQuotaResponse_BucketAction{a.blanket(typepb.RateLimitStrategy_DENY_ALL)}
	}
	tokens := &typepb.RateLimitStrategy{Strategy: &typepb.RateLimitStrategy_TokenBucket{
		TokenBucket: &typepb.TokenBucket{
			MaxTokens: a.Bucket.Max, TokensPerFill: wrapperspb.UInt32(a.Bucket.PerFill),
			FillInterval: span(a.Bucket.Interval),
		},
	}}
	return []*pb.RateLimitQuotaResponse_BucketAction{
		a.blanket(typepb.RateLimitStrategy_DENY_ALL), a.assignment(tokens),
	}
}

func (a *Action) blanket(rule typepb.RateLimitStrategy_BlanketRule) *pb.RateLimitQuotaResponse_BucketAction {
	return a.assignment(&typepb.RateLimitStrategy{Strategy: &typepb.RateLimitStrategy_BlanketRule_{BlanketRule: rule}})
}

func (a *Action) assignment(strategy *typepb.RateLimitStrategy) *pb.RateLimitQuotaResponse_BucketAction {
	return &pb.RateLimitQuotaResponse_BucketAction{
		BucketId: a.ID.message(),
		BucketAction: &pb.RateLimitQuotaResponse_BucketAction_QuotaAssignmentAction_{
			QuotaAssignmentAction: &pb.RateLimitQuotaResponse_BucketAction_QuotaAssignmentAction{
				AssignmentTimeToLive: span(a.TTL), RateLimitStrategy: strategy,
			},
		},
	}
}

func (id ID) message() *pb.BucketId { return &pb.BucketId{Bucket: id.Entries} }

// span returns a whole number of seconds in the form of a message.
func span(s quota.Span) *durationpb.Duration {
	return &durationpb.Duration{Seconds: int64(s / quota.Second)}
}
