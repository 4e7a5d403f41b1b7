package rls

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/weir-proxy/weir/controlplane/internal/ground/every"
	"github.com/weir-proxy/weir/shared/match"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/wire"
)

const (
	// reportEvery is the time between two reports of calls.
	reportEvery = time.Second
	// sampled: on average one call in sampled is a sample for the heaviest callers.
	sampled = 16
)

// recorder collects the next report about calls, like the filter: the refusals of each policy, a
// sample of the refused callers, and the heaviest callers.
type recorder struct {
	mu      sync.Mutex
	message wire.Decisions
	// at are the times of the refusals, by their places in the message.
	at [wire.MaxRefusals]quota.Instant
}

func (r *recorder) beginMessage() { r.message = wire.Decisions{Node: []byte(NodeName)} }

// countCall counts the decided call, and starts the decisions in shadow.
func (d *decision) countCall() {
	s, outcome := d.service, Allowed
	if d.refusing != nil {
		outcome = Refused
	}
	s.config.Meter.Call(outcome)
	for i := range d.hits {
		h := &d.hits[i]
		if h.refuses || d.refusing == nil {
			s.config.Meter.Decided(h.policy.Name, h.source.String(), h.refuses)
		}
	}
	if d.refusing == nil || d.refusing.reason != policy.ReasonPenalty {
		d.countOffences()
		d.watchShadows()
	}
	d.recordCall()
}

// callerIdentity returns the parts of the caller's identity that the policy set shows.
func (d *decision) callerIdentity() *wire.Identity {
	if !d.identified {
		d.matcher.Identify(&d.view.Index, &d.attributes, true, &d.identity)
		d.identified = true
	}
	return &d.identity
}

// recordCall notes the call for the next report.
func (d *decision) recordCall() {
	sample := rand.Uint32()%sampled == 0
	if d.service.config.Report == nil || !sample && d.refusing == nil {
		return
	}
	id := d.callerIdentity()
	r, now := &d.service.recorder, toInstant(d.service.config.Now())
	r.mu.Lock()
	defer r.mu.Unlock()
	r.useVersion(d.view.Version)
	if d.refusing != nil {
		r.countRefusal(d.refusing, id, now)
	}
	for i := range d.hits {
		if h := &d.hits[i]; sample && (i == 0 || d.hits[i-1].Policy != h.Policy) {
			r.countCaller(h, id)
		}
	}
}

// recordBanned notes a call that a ban refuses, like the filter: without a policy, under the banned
// partition key, else under the consumer if the call names its consumer.
func (d *decision) recordBanned(found *match.Result) {
	if d.service.config.Report == nil {
		return
	}
	id := d.callerIdentity()
	h := hit{Hit: match.Hit{Policy: wire.BanPolicy, Key: id.Consumer}, source: policy.ByRequest, retry: quota.Never,
		reason: wire.BanReason + policy.Reason(found.Ban)}
	if found.Ban == match.KeyBan {
		h.Key = found.BannedKey
	}
	r, now := &d.service.recorder, toInstant(d.service.config.Now())
	r.mu.Lock()
	defer r.mu.Unlock()
	r.useVersion(d.view.Version)
	r.countRefusal(&h, id, now)
}

// useVersion starts an empty message if the message is about another version. The lock is held.
func (r *recorder) useVersion(version uint64) {
	if r.message.Version != version {
		r.message.Version = version
		r.startMessage()
	}
}

// startMessage starts an empty message in new memory: a report may still use the old memory.
func (r *recorder) startMessage() {
	r.message.Counts, r.message.Refusals, r.message.Callers = nil, nil, nil
}

// countRefusal counts a refusal, and notes its caller if there is room. The lock is held.
func (r *recorder) countRefusal(h *hit, id *wire.Identity, now quota.Instant) {
	r.countHit(h)
	for i := range r.message.Refusals {
		if one := &r.message.Refusals[i]; one.Bucket == h.Key && one.Policy == h.Policy {
			one.Count++
			return
		}
	}
	at := len(r.message.Refusals)
	if at == wire.MaxRefusals {
		return
	}
	one := wire.Refusal{
		CallerCount: callerOf(h, id), Limit: h.Limit, Reason: uint8(h.reason), Source: uint8(h.source),
		Cost: min(h.cost, policy.MaxCost), Left: max(h.remaining, 0),
	}
	one.Count = 1
	if h.retry != quota.Never {
		one.Retry = min(h.retry, quota.MaxWindow)
	}
	r.message.Refusals = append(r.message.Refusals, one)
	r.at[at] = now
}

func callerOf(h *hit, id *wire.Identity) wire.CallerCount {
	return wire.CallerCount{
		Policy: h.Policy, Tier: h.Tier, Bucket: h.Key, Identity: id.Clone(),
	}
}

func (r *recorder) countHit(h *hit) {
	for i := range r.message.Counts {
		if c := &r.message.Counts[i]; c.Policy == h.Policy && c.Tier == h.Tier {
			c.Refused++
			return
		}
	}
	if len(r.message.Counts) < wire.MaxCounts {
		r.message.Counts = append(r.message.Counts, wire.RefusedCount{Policy: h.Policy, Tier: h.Tier, Refused: 1})
	}
}

// countCaller counts a sampled call. A new caller takes the place and the count of the caller with
// the lowest count, so every caller with many calls has a place. The lock is held.
func (r *recorder) countCaller(h *hit, id *wire.Identity) {
	list, least := r.message.Callers, 0
	for i := range list {
		if list[i].Bucket == h.Key && list[i].Policy == h.Policy {
			list[i].Count += sampled
			return
		}
		if list[i].Count < list[least].Count {
			least = i
		}
	}
	one, over := callerOf(h, id), int64(0)
	if len(list) == wire.MaxCallers {
		over = list[least].Count
		one.Count, one.Over = over+sampled, over
		list[least] = one
		return
	}
	one.Count = sampled
	r.message.Callers = append(list, one)
}

// takeReport returns the message to report, nil if nothing has happened.
func (r *recorder) takeReport(now quota.Instant) *wire.Decisions {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.message.Counts)+len(r.message.Callers) == 0 || r.message.Version == 0 {
		return nil
	}
	m := r.message
	for i := range m.Refusals {
		m.Refusals[i].Ago = min(max(quota.Span(now-r.at[i]), 0), quota.Hour)
	}
	r.startMessage()
	return &m
}

// Run sends reports about calls until ctx ends.
func (s *Service) Run(ctx context.Context) {
	every.Period(ctx, reportEvery, func(context.Context) {
		if m := s.recorder.takeReport(toInstant(s.config.Now())); m != nil && s.config.Report != nil {
			s.config.Report(m)
		}
	})
}
