package rlqs

import (
	"context"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/weir-proxy/weir/controlplane/internal/serve/assign"
	"github.com/weir-proxy/weir/controlplane/internal/serve/calls"
	"github.com/weir-proxy/weir/shared/match"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/wire"
)

// Leases grants tokens. *leases.Service implements it.
type Leases interface {
	GrantFor(ctx context.Context, req wire.LeaseRequest, span quota.Span) (wire.LeaseReply, error)
}

// Config holds the services and settings of a Server. All fields must be set.
type Config struct {
	// View returns the policies that decide about buckets, nil while they are not known.
	View func() *calls.View
	// Penalties are the penalties that other doors have begun: a refusal by this door is no
	// offence.
	Penalties Penalties
	Leases    Leases
	// Consumers looks up the consumers of a bucket.
	Consumers func(context.Context) match.Consumers
	Meter     Meter
	Log       *slog.Logger
	Now       func() time.Time
}

// ledgers is the Source of a control plane.
type ledgers struct {
	rules  rules
	leases Leases

	mu sync.Mutex
	// unfit are the policies of a version that were complained about.
	unfit   map[string]bool
	version uint64
}

// limits are the limits that a bucket's requests need tokens from.
type limits struct {
	version uint64
	items   []wire.LeaseItem
}

// Stand implements Source.
func (l *ledgers) Stand(ctx context.Context, id ID) Standing {
	h, known := l.rules.holdBucket(ctx, id)
	if !known {
		return Standing{}
	}
	switch h.access {
	case match.Banned:
		return Standing{Verdict: Denied}
	case match.Exempt, match.Off:
		return Standing{Verdict: Allowed}
	}
	s := Standing{Verdict: Allowed}
	by := limits{version: h.version}
	for i := range h.hits {
		one := &h.hits[i]
		switch {
		case one.Shadow || one.policy.Mode == policy.ModeLocal || one.limit.InFlight:
			continue
		case one.Verdict == match.RefusedCost && !id.namesHeader(one.policy.Cost.Source):
			one.Cost = 1 // A report says nothing of single requests, so that they all count alike.
		case one.Verdict != match.Limited:
			return Standing{Verdict: Denied}
		case assign.Unfit(one.policy, one.limit) != "":
			l.warnOnce(h.version, one.policy.Name)
			return Standing{}
		}
		if l.isPenalised(&h, one.Policy) {
			return Standing{Verdict: Denied}
		}
		if one.Cost == 0 { // It takes no tokens of this limit.
			continue
		}
		s.Verdict = Limited
		s.Figures = s.Figures.With(one.limit.Params, one.Cost, one.limit.Params.Burst)
		by.items = append(by.items, one.item())
	}
	s.Limits = by
	return s
}

// isPenalised reports whether a penalty refuses the requests that a policy limits.
func (l *ledgers) isPenalised(h *held, policy uint32) bool {
	for i := range h.callers {
		c := &h.callers[i]
		if (c.everywhere || c.policy == policy) && l.rules.config.Penalties.InForce(c.key) {
			return true
		}
	}
	return false
}

// warnOnce counts that a bucket of a policy cannot be assigned, and logs it once for the policy.
func (l *ledgers) warnOnce(version uint64, name string) {
	l.rules.config.Meter.QuotaIgnored(IgnoredUnfit)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.version != version || l.unfit == nil {
		l.version, l.unfit = version, map[string]bool{}
	}
	if l.unfit[name] {
		return
	}
	l.unfit[name] = true
	l.rules.config.Log.Warn("buckets of this policy are not assigned, since its algorithm decides single requests, "+
		"or its window is under 2s: take another algorithm, or Envoy's ratelimit filter", "policy", name)
}

// item asks for a hit's bucket.
func (h *hit) item() wire.LeaseItem {
	it := calls.Item(&h.Hit, h.policy, &h.limit, h.consumer, h.revision)
	it.Cost = h.Cost
	return it
}

// namesHeader reports whether the bucket's entries name a header.
func (id ID) namesHeader(header policy.Source) bool {
	for key := range id.Entries {
		if strings.EqualFold(key, "header:"+header.Name) {
			return true
		}
	}
	return false
}

// Take implements Source. If a bucket has several limits, it asks the second limit for the tokens
// that the first granted, and so on. So each limit is charged for at least the assigned tokens.
func (l *ledgers) Take(ctx context.Context, asks []Ask) {
	for i := range asks {
		asks[i].Granted, asks[i].Level = asks[i].Want, quota.MaxUnits
	}
	for limit := 0; ; limit++ {
		calls := callsFor(asks, limit)
		if len(calls) == 0 {
			return
		}
		var wait sync.WaitGroup
		for c := range calls {
			wait.Go(func() { l.askLedgers(ctx, &calls[c], asks) })
		}
		wait.Wait()
	}
}

// call is one request to the store, of asks with one version and lease.
type call struct {
	request wire.LeaseRequest
	lease   quota.Span
	// which are the asks of the items.
	which []int
}

// perCall bounds the items of a call.
const perCall = 64

// callsFor makes the calls for one limit of each ask, given by its index.
func callsFor(asks []Ask, limit int) (calls []call) {
	for i := range asks {
		by := asks[i].Limits.(limits)
		if limit >= len(by.items) || asks[i].Granted <= 0 || asks[i].Failed {
			continue
		}
		at := -1
		for c := range calls {
			same := calls[c].lease == asks[i].Lease && calls[c].request.Version == by.version
			if same && len(calls[c].which) < perCall {
				at = c
			}
		}
		if at < 0 {
			at = len(calls)
			calls = append(calls, call{request: wire.LeaseRequest{Version: by.version}, lease: asks[i].Lease})
		}
		one := by.items[limit]
		one.Waiting = asks[i].Granted
		calls[at].request.Items = append(calls[at].request.Items, one)
		calls[at].which = append(calls[at].which, i)
	}
	return calls
}

func (l *ledgers) askLedgers(ctx context.Context, c *call, asks []Ask) {
	reply, err := l.leases.GrantFor(ctx, c.request, c.lease)
	for k, i := range c.which {
		if err != nil || reply.Items[k].State != wire.ItemGranted {
			asks[i].Granted, asks[i].Failed = 0, true
			continue
		}
		answer := &reply.Items[k]
		asks[i].Granted = answer.Waiting
		asks[i].Level = min(asks[i].Level, answer.Level/c.request.Items[k].Cost)
	}
}
