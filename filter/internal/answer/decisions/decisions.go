// Package decisions samples, in one VM, refused requests and the heaviest callers, and reports them
// to the control plane. It uses bounded memory and a bounded time for each request, and makes no
// call into Envoy for an allowed request.
package decisions

import (
	"github.com/weir-proxy/weir/filter/internal/base/rpc"
	"github.com/weir-proxy/weir/filter/internal/base/ruleset"
	"github.com/weir-proxy/weir/filter/internal/decide/limiter"
	"github.com/weir-proxy/weir/shared/match"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/wire"
)

const (
	// describedMost bounds the refusals between two messages that are sampled and not only counted.
	describedMost = 128
	// every is the mean number of decided requests per sample of the heaviest callers.
	every = 16
	slots = 2 * wire.MaxCounts
)

// Recorder has the samples of one VM. Each worker has its own Recorder, so collecting needs no
// shared data on the path of requests. Make a Recorder with New.
type Recorder struct {
	random rpc.Rand
	// callersDue is when the next message must include the callers.
	callersDue quota.Instant
	matcher    match.Matcher
	// generation is the generation of the policy set of all samples.
	generation uint64
	message    wire.Decisions
	// sent is the message that leaves. It shares the memory of message until it is written.
	sent wire.Decisions
	// banned describes the caller of a request that a ban refuses.
	banned wire.CallerCount
	// at are the times of the refusals, by their index in the message. described is the number of
	// sampled refusals.
	at        [wire.MaxRefusals]quota.Instant
	described int
	// counted is a hash table of the counts by policy and tier: 1 + the index in the message, 0 for
	// an empty slot.
	counted [slots]uint16
	// gap is the number of decided requests before the next sampled request.
	gap int
}

// Refused notes a refused request. Its attributes are a, or nil if they are gone; then id describes
// its caller.
func (s *Recorder) Refused(req *limiter.Request, a *match.Attributes, id *wire.Identity, now quota.Instant) {
	if !s.useSet(req.Rules()) {
		return
	}
	h := &req.Hits[req.Refusing]
	i := s.refusalEntry(h, s.countRefusal(h))
	if i < 0 {
		return
	}
	r := &s.message.Refusals[i]
	r.Count++
	if r.Count-r.Over == 1 {
		s.describeCaller(req.Rules(), &r.CallerCount, a, id, true)
	}
	r.Limit, r.Reason, r.Source = h.Limit, uint8(req.Reason), uint8(req.Source)
	r.Cost, r.Left, r.Retry = h.Cost, max(h.Remaining, 0), 0
	if h.Retry != quota.Never {
		r.Retry = min(h.Retry, quota.MaxWindow)
	}
	s.at[i] = now
}

// Banned notes a request that a ban refuses. Its attributes are a, or nil if they are gone; then id
// describes its caller.
func (s *Recorder) Banned(req *limiter.Request, a *match.Attributes, id *wire.Identity, now quota.Instant) {
	if !s.useSet(req.Rules()) {
		return
	}
	var h limiter.Hit
	h.Policy = wire.BanPolicy
	first := s.countRefusal(&h)
	s.describeCaller(req.Rules(), &s.banned, a, id, true)
	if h.Key = req.BannedKey; req.Ban != match.KeyBan {
		h.Key = s.banned.Consumer // Bans without a consumer, for example of addresses, share one entry.
	}
	i := s.refusalEntry(&h, first)
	if i < 0 {
		return
	}
	r := &s.message.Refusals[i]
	r.Count++
	r.Consumer, r.Shown = s.banned.Consumer, append(r.Shown[:0], s.banned.Shown...)
	r.Limit, r.Reason, r.Source = 0, wire.BanReason+uint8(req.Ban), uint8(policy.ByRequest)
	r.Cost, r.Left, r.Retry = 0, 0, 0
	s.at[i] = now
}

// Decided notes a request on which policies are enforced, allowed or refused. It samples one caller
// in every requests.
func (s *Recorder) Decided(req *limiter.Request, a *match.Attributes, id *wire.Identity) {
	s.gap--
	if s.gap >= 0 || !s.useSet(req.Rules()) {
		return
	}
	s.gap = int(s.random.Next() % (2*every - 1))
	for i := range req.Hits {
		if h := &req.Hits[i]; i == 0 || req.Hits[i-1].Policy != h.Policy {
			c := s.callerEntry(h)
			c.Count += every
			if c.Count-c.Over == every {
				s.describeCaller(req.Rules(), c, a, id, false)
			}
		}
	}
}

// useSet starts new samples for a newer policy set. It reports false for a request that an older
// set decided, or the plugin's own set, which the control plane does not know.
func (s *Recorder) useSet(rules *ruleset.Rules) bool {
	if rules.Generation > s.generation {
		s.clearSamples(true)
		s.generation, s.message.Version = rules.Generation, rules.Index.Version()
	}
	return rules.Generation == s.generation && s.message.Version > 0
}

// clearSamples drops the samples; callers: also the callers.
func (s *Recorder) clearSamples(callers bool) {
	s.message.Counts, s.message.Refusals, s.described = s.message.Counts[:0], s.message.Refusals[:0], 0
	clear(s.counted[:])
	if callers {
		s.message.Callers = s.message.Callers[:0]
	}
}

// Identify describes the caller of a request that has to wait: its attributes are gone when it goes
// on.
//
//go:noinline
func (s *Recorder) Identify(rules *ruleset.Rules, a *match.Attributes, id *wire.Identity) {
	s.matcher.Identify(&rules.Index, a, true, id)
}

// describeCaller fills in the facts about a caller that may be reported. It is not inlined, to keep
// the module small.
//
//go:noinline
func (s *Recorder) describeCaller(rules *ruleset.Rules, c *wire.CallerCount, a *match.Attributes, id *wire.Identity,
	askEnvoy bool,
) {
	if a != nil {
		s.matcher.Identify(&rules.Index, a, askEnvoy, &c.Identity)
		return
	}
	c.Consumer, c.Shown = id.Consumer, append(c.Shown[:0], id.Shown...)
}

// countRefusal counts a refusal of its policy and tier, and reports whether it is the first. Beyond
// wire.MaxCounts it is not counted.
func (s *Recorder) countRefusal(h *limiter.Hit) (first bool) {
	at := (h.Policy*31 + uint32(h.Tier)) % slots
	for ; s.counted[at] != 0; at = (at + 1) % slots {
		if c := &s.message.Counts[s.counted[at]-1]; c.Policy == h.Policy && c.Tier == h.Tier {
			c.Refused++
			return false
		}
	}
	if n := len(s.message.Counts); n < wire.MaxCounts {
		s.message.Counts = append(s.message.Counts, wire.RefusedCount{Policy: h.Policy, Tier: h.Tier, Refused: 1})
		s.counted[at] = uint16(n + 1)
		return true
	}
	return false
}

// refusalEntry returns the index of a refused bucket among the refusals, -1 if there is no room.
// The first refusal of each policy and tier has room while there are free entries.
func (s *Recorder) refusalEntry(h *limiter.Hit, first bool) int {
	list := s.message.Refusals
	for i := range list {
		if list[i].Bucket == h.Key && list[i].Policy == h.Policy {
			return i
		}
	}
	if s.described >= describedMost && !first {
		return -1
	}
	s.described++
	i, over := len(list), int64(0)
	if i < wire.MaxRefusals {
		s.message.Refusals = list[:i+1]
	} else if i, over = s.entryToReplace(h); i < 0 {
		return -1
	}
	r := &s.message.Refusals[i]
	r.Policy, r.Tier, r.Bucket, r.Count, r.Over = h.Policy, h.Tier, h.Key, over, over
	return i
}

// entryToReplace returns the entry that a new entry replaces, and the number of refusals that the
// new entry takes over. It is the least refused entry of the policy and tier with the most entries.
// If the new entry's own policy and tier has the same number of entries, it is the least refused
// entry there, so that no policy pushes other policies out. It is -1 if each policy and tier has
// one entry.
func (s *Recorder) entryToReplace(h *limiter.Hit) (at int, over int64) {
	list := s.message.Refusals
	// Find the policy and tier with the most entries, and count the new entry's own.
	own, most, from := 0, 0, 0
	for i := range list {
		n := 0
		for j := range list {
			if list[j].Policy == list[i].Policy && list[j].Tier == list[i].Tier {
				n++
			}
		}
		if n > most {
			most, from = n, i
		}
		if list[i].Policy == h.Policy && list[i].Tier == h.Tier {
			own = n
		}
	}
	// Choose the policy and tier that loses an entry.
	p, tier := h.Policy, h.Tier
	foreign := own+1 < most
	if foreign {
		p, tier = list[from].Policy, list[from].Tier
	}
	// Find its least refused entry.
	at = -1
	for i := range list {
		if list[i].Policy == p && list[i].Tier == tier && (at < 0 || list[i].Count < list[at].Count) {
			at = i
		}
	}
	if at >= 0 && !foreign {
		over = list[at].Count
	}
	return at, over
}

// callerEntry returns the entry of a bucket among the callers. A new entry replaces the entry with
// the lowest count and takes over its count, so that every caller with more than 1 in MaxCallers of
// the sampled requests has an entry.
func (s *Recorder) callerEntry(h *limiter.Hit) *wire.CallerCount {
	list, least := s.message.Callers, 0
	for i := range list {
		if list[i].Bucket == h.Key && list[i].Policy == h.Policy {
			return &list[i]
		}
		if list[i].Count < list[least].Count {
			least = i
		}
	}
	var over int64
	if n := len(list); n < wire.MaxCallers {
		s.message.Callers, least = list[:n+1], n
	} else {
		over = list[least].Count
	}
	c := &s.message.Callers[least]
	c.Policy, c.Tier, c.Bucket, c.Count, c.Over = h.Policy, h.Tier, h.Key, over, over
	return c
}
