package match

import (
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/wire"
)

// addPolicy adds the hits of a policy whose host and path match. It adds none if a condition fails,
// if the policy leaves the caller unlimited or is switched off, or if the request lacks a part of
// the key and the policy skips such requests.
func (c *collector) addPolicy(found pathMatch, a *Attributes) {
	p, e := &c.ix.policies[found.policy], &c.ix.enforcement
	if !c.isApplicable(p, a) {
		return
	}
	c.findRank(p, a)
	set := c.limitsFor(p, a)
	// Find the limits for the caller.
	// A caller without limits can still have a key that is banned.
	unlimited := set.count == 0
	if unlimited && !c.ix.bansKeys() {
		return
	}
	complete := c.putPartition(p, found.pattern, a)
	if !complete && p.IfAbsent == policy.AbsentSkip {
		return
	}
	absent := !complete && p.IfAbsent == policy.AbsentDeny
	// A request without a key keeps the zero key. Its share is 0, so a policy that is enforced for
	// some keys is enforced for it.
	var partition keyhash.Key
	if !absent {
		partition = c.hashKey()
	}
	share := ShareOf(partition)
	state := e.stateFor(found.policy, share, c.tier, p.Enforced)
	lifted := p.InFlight && p.adaptive == 0 && !absent && !unlimited &&
		refusesKey(p.Enforced, share) && !refusesKey(state, share)
	if state == policy.EnforcedOff {
		c.bypassed = c.bypassed || p.Enforced != policy.EnforcedOff
		if lifted {
			c.addCounted(p, set, found.policy, partition, a)
		}
		return
	}
	several := c.ambiguous
	c.keyBanned = c.keyBanned || !absent && c.bansKey(p, found.pattern, a, partition)
	if encoded := len(c.key); lifted {
		c.addCounted(p, set, found.policy, partition, a)
		c.key = c.key[:encoded]
	}
	hit := Hit{Policy: found.policy, Shadow: share >= uint32(state)}
	if p.needsTier {
		hit.Tier = uint8(c.tier) + 1
	}
	switch {
	case unlimited:
	case absent || several:
		if hit.Verdict = RefusedSeveral; absent {
			hit.Verdict = RefusedAbsent
		}
		c.addLimits(p, set, hit, a)
	default:
		if p.penalty > 0 && complete {
			c.addSubjects(p, set, hit, found.pattern, partition, a)
		}
		c.addHits(p, set, hit, partition, a)
	}
}

// addHits adds a hit for each limit of a policy and for each candidate.
func (c *collector) addHits(p *Policy, set limitSet, hit Hit, partition keyhash.Key, a *Attributes) {
	var base int
	hit.Key, base = c.bucketOf(p, partition, hit.Shadow)
	hit.Cost, hit.Verdict = c.costOf(p, a)
	c.addLimits(p, set, hit, a)
	if hit.Verdict == Limited {
		c.addCandidates(p, hit, base, a)
	}
}

// refusesKey reports whether a policy in a state refuses requests of a key with this share.
func refusesKey(state policy.Enforced, share uint32) bool {
	return state != policy.EnforcedOff && share < uint32(state)
}

// addCounted adds the limits of requests in flight of a policy that an order has lifted, with the
// buckets that will count the requests when the policy is enforced again.
//
//go:noinline
func (c *collector) addCounted(p *Policy, set limitSet, number uint32, partition keyhash.Key, a *Attributes) {
	before, hit := len(c.hits), Hit{Policy: number, Cost: 1}
	if p.needsTier {
		hit.Tier = uint8(c.tier) + 1
	}
	hit.Key, _ = c.bucketOf(p, partition, false)
	c.addLimits(p, set, hit, a)
	for _, h := range c.hits[before:] {
		if c.ix.limits[h.Limit].InFlight {
			c.counted = append(c.counted, h)
		}
	}
	c.hits = c.hits[:before]
}

// isApplicable reports whether a policy applies to the request, by its conditions and the caller's
// tier.
func (c *collector) isApplicable(p *Policy, a *Attributes) bool {
	e := &c.ix.enforcement
	if p.Enforced == policy.EnforcedOff && len(e.orders) == 0 || !c.meetsConditions(p, a) {
		return false
	}
	if p.needsTier || e.byTier {
		c.findTier(a)
	}
	return p.tiers == 0 || p.tiers>>c.tier&1 == 1
}

// limitsFor finds the limits of a policy for the caller: the limits of the policy or of the
// caller's tier, or the consumer's own limits in their place.
func (c *collector) limitsFor(p *Policy, a *Attributes) limitSet {
	number := uint32(0)
	if p.ByTier {
		number = uint32(c.tier)
	}
	set := limitSet{document: c.ix.runOf(p, number)}
	set.count = set.document.len()
	if p.ByConsumer && p.ByTier && c.guessed {
		set.certainty = GuessedTier
	}
	if !p.ByConsumer || !c.exceptions {
		return set
	}
	c.findConsumer(a)
	first := uint32(len(c.own))
	overridden, certainty := c.addOverride(p)
	set.certainty = max(set.certainty, certainty)
	if overridden {
		set.count = uint32(len(c.own)) - first
		set.own = first + 1
	}
	return set
}

// addOverride adds the consumer's own limits under a policy. It reports whether the consumer has
// any, and how certain that is. Limits that do not fit the policy's way to count, as after a change
// of the policy, are ignored.
func (c *collector) addOverride(p *Policy) (overridden bool, certainty Certainty) {
	who := &c.consumer
	if !wire.FindOverride(who.Exceptions, c.ix.Text(p.Name), &c.limits) {
		if who.Known && !who.Sure {
			return false, Guessed
		}
		return false, Certain
	}
	if c.limits.Until <= who.Now {
		return false, Recorded
	}
	first := len(c.own)
	if p.reserves.len() > 0 {
		return false, Recorded // One number cannot define the reserved parts.
	}
	counting := c.ix.limits[c.ix.runOf(p, 0).from].Counting
	if p.InFlight {
		return false, Recorded
	}
	for i := range c.limits.Each[:c.limits.Count] {
		f := &c.limits.Each[i]
		limit, err := counting.Override(f.Quota, f.Window, f.Burst)
		if err != nil {
			c.own = c.own[:first]
			return false, Recorded
		}
		limit.Root = f.Root
		c.own = append(c.own, limit)
	}
	return true, Recorded
}

// addLimits adds a hit for each of a policy's limits. The hits are copies of hit, which is the
// first.
func (c *collector) addLimits(p *Policy, set limitSet, hit Hit, a *Attributes) {
	hit.Certainty, hit.Late = set.certainty, c.reserveSteps(p) > 0
	base, first := len(c.key), hit.Key
	for i := range set.count {
		hit.Limit, hit.Position = set.document.from+i, uint8(i)
		if !c.countsForClass(p, i, set.count) {
			continue
		}
		if set.own > 0 {
			hit.Own = set.own + i
			hit.Limit = c.replacedLimit(p, set, &c.own[hit.Own-1])
		} else {
			hit.Own = c.ownLimit(hit.Limit, a)
		}
		c.key = putLimit(c.key[:base], c.limitOf(&hit), stepOf(i, set.count, 1+p.reserves.len()))
		if hit.Key = first; len(c.key) > base {
			hit.Key = beginWith(c.hashKey(), first)
		}
		c.addHit(hit)
	}
}

// stepOf returns the step of a policy that the n-th limit in a list belongs to: see
// policy.Policy.Steps.
func stepOf(n, of, steps uint32) uint32 { return n / max(of/steps, 1) }

// replacedLimit returns the number of the document's limit that a consumer's own limit replaces. A
// further own limit gets the number of the policy's first limit, which only names the policy.
func (c *collector) replacedLimit(p *Policy, set limitSet, own *policy.Limit) uint32 {
	for i := set.document.from; i < set.document.to; i++ {
		if c.ix.limits[i].Root == own.Root {
			return i
		}
	}
	return c.ix.runOf(p, 0).from
}

// limitOf returns the limit that counts for a hit.
func (c *collector) limitOf(hit *Hit) *policy.Limit {
	if hit.Own > 0 {
		return &c.own[hit.Own-1]
	}
	return &c.ix.limits[hit.Limit]
}

// addHit adds a hit. A request in flight takes one place, whatever it costs. A suspended limit has
// no bucket to ask, unless it replaces a limit that the consumer may have of its own.
func (c *collector) addHit(hit Hit) {
	limit := c.limitOf(&hit)
	if limit.InFlight {
		hit.Cost = 1
	}
	guessed := hit.Certainty >= Guessed && hit.Own == 0
	if limit.Suspended() && hit.Verdict != RefusedAbsent && !guessed {
		hit.Verdict = Suspended
	}
	c.hits = append(c.hits, hit)
}

// addCandidates adds a hit for each of a policy's candidates. The keys of their buckets begin with
// the first base bytes of the encoded key.
func (c *collector) addCandidates(p *Policy, hit Hit, base int, a *Attributes) {
	candidates := c.ix.runOf(p, p.candidateRun())
	hit.Shadow, hit.Candidate, hit.Late = true, true, c.reserveSteps(p) > 0
	first := hit.Key
	for hit.Limit = candidates.from; hit.Limit < candidates.to; hit.Limit++ {
		n := hit.Limit - candidates.from
		if !c.countsForClass(p, n, candidates.len()) {
			continue
		}
		hit.Own = c.ownLimit(hit.Limit, a)
		step := stepOf(n, candidates.len(), 1+p.reserves.len())
		c.key = putLimit(append(c.key[:base], candidateMark), c.limitOf(&hit), step)
		hit.Key = beginWith(c.hashKey(), first)
		c.addHit(hit)
	}
}

// ownLimit adds a limit with the request's own figures for it, and returns 1 + its index; 0 if the
// limit takes no figures from requests.
func (c *collector) ownLimit(number uint32, a *Attributes) (own uint32) {
	limit := &c.ix.limits[number]
	if limit.Own == 0 {
		return 0
	}
	f := c.ix.figuresOf(number)
	c.own = append(c.own, limit.Of(c.ownFigure(&f.quota, a), c.ownFigure(&f.burst, a), f.burst.kind != 0))
	return uint32(len(c.own))
}
