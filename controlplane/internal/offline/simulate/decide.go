package simulate

import (
	"fmt"
	"slices"

	"github.com/weir-proxy/weir/shared/classify"
	"github.com/weir-proxy/weir/shared/decide"
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/match"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/wire"
)

// MaxBuckets is the maximum number of buckets in memory. Buckets that have refilled are dropped
// without an effect on the result. If too many are in use, others are dropped too early, which the
// report counts.
const MaxBuckets = 1_000_000

// bucket is one bucket in the time of the log.
type bucket struct {
	tokens  quota.State
	params  quota.Params // the parameters that tokens are counted in
	history quota.History
	full    quota.Instant // from this time it equals an absent bucket
	// ends are the times at which the requests in flight end, earliest first.
	ends []quota.Instant
	// waits are the times at which waiting requests stop to wait.
	waits []quota.Instant
}

// decider decides requests by one policy set, with one exact bucket that all nodes share.
type decider struct {
	set        *policy.Set
	index      match.Index
	matcher    match.Matcher
	classifier classify.Classifier
	limits     []policy.Limit // in the order of the snapshot; a local limit is multiplied by nodes
	nodes      int64
	buckets    map[keyhash.Key]*bucket
	offenders  map[keyhash.Key]*offender
	most       int
	// sweepAt is the number of buckets at which refilled ones are dropped.
	sweepAt   int
	forgotten int64
	// own are the caller's own limits for the current request.
	own  []policy.Limit
	open []match.Hit
	// lasts is the time that the current request is in flight.
	lasts quota.Span
	// alone is true if all hits that refused the last request belong to one policy.
	alone bool
	// due are the reservations to settle, earliest first.
	due []settling
}

// verdict is the decision of a policy set about a request.
type verdict struct {
	// policy is the index of the policy that refuses; -1 if the request passes.
	policy int
	// banned is true if a ban refuses the request before any policy.
	banned bool
	// who identifies the caller by the partition of the policy that refuses.
	who string
	key keyhash.Key
	// shadows are the indexes of the policies that would have refused the request in shadow, or
	// with their candidate.
	shadows []int
}

// newDecider compiles a set. A local limit counts once per node. secret is the key of the hashes.
func newDecider(set *policy.Set, nodes int64, secret [16]byte) (*decider, error) {
	d := &decider{set: set, nodes: nodes, buckets: map[keyhash.Key]*bucket{}, offenders: map[keyhash.Key]*offender{},
		most: MaxBuckets, sweepAt: 4096}
	if err := d.index.Load(wire.AppendSnapshot(nil, wire.Snapshot{Version: 1, Secret: secret, Set: set})); err != nil {
		return nil, err
	}
	// Collect the limits of all policies in the order of the index.
	for i := range set.Policies {
		p := &set.Policies[i]
		runs := [][]policy.Limit{p.Limits}
		if len(p.Tiers) > 0 {
			runs = nil
			for tier := range p.Tiers {
				runs = append(runs, p.LimitsOf(tier))
			}
		}
		for _, run := range append(runs, p.Candidate) {
			for _, l := range run {
				// Nodes with buckets of their own together admit a multiple of the limit.
				if p.Mode == policy.ModeLocal {
					var ok bool
					l, ok = multiplyLimit(l, nodes)
					if !ok {
						return nil, fmt.Errorf("policy %s: its limit on each of %d nodes is more than can be counted",
							p.Name, nodes)
					}
				}
				d.limits = append(d.limits, l)
			}
		}
	}
	return d, nil
}

// multiplyLimit returns a limit for n nodes that each have it. It returns false if the product is
// too large to be counted exactly.
func multiplyLimit(l policy.Limit, n int64) (policy.Limit, bool) {
	p := l.Params
	if p.Num > quota.MaxUnits/n || p.Burst > quota.MaxUnits/p.Den/n || l.Quota > quota.MaxUnits/n {
		return l, false
	}
	l.Params.Num = p.Num * n
	l.Params.Burst = p.Burst * n
	l.Quota = l.Quota * n
	return l, true
}

// decideRequest decides a request at its time. Calls must be in the order of time.
func (d *decider) decideRequest(r *record) verdict {
	v := verdict{policy: -1}
	d.settleDue(r.at)
	a := d.classifier.Of(r.headers, r.source, classify.RulesOf(&d.index))
	a.Properties, a.Consumers = r, r
	matched := d.matcher.Match(&d.index, &a)
	if matched.Access == match.Banned {
		v.banned, v.who = true, string(r.source)
		return v
	}
	d.own, d.open, d.lasts = matched.Own, d.open[:0], r.lasted
	for i, h := range matched.Hits {
		h = d.withReservation(h)
		matched.Hits[i] = h
		if !h.Shadow {
			d.open = append(d.open, h)
		}
	}
	if s := d.findPenalty(matched.Subjects, r.at); s != nil && !slices.ContainsFunc(d.open, isSuspended) {
		return d.refuseBy(s, &a, r)
	}
	if at, reason := d.findRefusal(d.open, r.at); at >= 0 {
		h := d.open[at]
		d.countOffence(matched.Subjects, h.Policy, reason, r.at)
		v.policy = int(h.Policy)
		v.key = h.Key
		v.who = d.identifyCaller(h, &a, r)
		d.lasts = 0 // The request does not reach the upstream.
		d.watchAll(matched.Hits, matched.Subjects, r, &v)
		return v
	}
	d.chargeHits(d.open, r)
	d.watchAll(matched.Hits, matched.Subjects, r, &v)
	return v
}

// watchAll tries the policies in shadow and the candidates on a request. If a policy has refused
// the request alone, it tries the candidates of that policy too.
func (d *decider) watchAll(rest []match.Hit, subjects []match.Subject, r *record, v *verdict) {
	for len(rest) > 0 {
		var run []match.Hit
		run, rest = decide.CutTrial(rest)
		tries := v.policy < 0 || decide.TriesRefused(&run[0], int(run[0].Policy) == v.policy, !d.alone)
		if !run[0].Shadow || !tries {
			continue
		}
		if d.watchRun(run, subjects, r) {
			v.shadows = append(v.shadows, int(run[0].Policy))
		}
	}
}

// watchRun reports whether a policy in shadow, or a candidate, would have refused a request. If
// not, it charges the request to that policy.
func (d *decider) watchRun(run []match.Hit, subjects []match.Subject, r *record) bool {
	if !run[0].Candidate && isHeld(subjects, run[0].Policy) {
		return true
	}
	at, reason := d.findRefusal(run, r.at)
	if at < 0 {
		d.chargeHits(run, r)
		return false
	}
	if !run[0].Candidate {
		d.countOffence(subjects, run[at].Policy, reason, r.at)
	}
	return true
}

// isSuspended reports whether the limit of the hit is suspended.
func isSuspended(h match.Hit) bool { return h.Verdict == match.Suspended }

// findRefusal returns the index of the hit that refuses, and the reason; -1 if all hits allow the
// request. A suspended limit comes before a hit that refuses without a bucket, and both before the
// bucket with the longest wait. It sets d.alone and charges nothing.
func (d *decider) findRefusal(hits []match.Hit, now quota.Instant) (at int, reason policy.Reason) {
	at, d.alone = -1, true
	first, longest := 0, quota.Span(-1)
	for i, h := range hits {
		rank, wait := 1, quota.Never
		why, refuses := decide.RefusesAlone(h.Verdict)
		switch {
		case isSuspended(h):
			rank = 2
		case !refuses:
			result := d.takeTokens(h, now, false)
			if result.Allowed {
				continue
			}
			rank, wait, why = 0, result.RetryAfter, decide.BucketReason(result.RetryAfter)
		}
		d.alone = d.alone && (at < 0 || hits[at].Policy == h.Policy)
		if rank > first || rank == first && wait > longest {
			at, first, longest, reason = i, rank, wait, why
		}
	}
	return at, reason
}

// chargeHits takes the tokens of all hits from their buckets, and schedules the settlements.
func (d *decider) chargeHits(hits []match.Hit, r *record) {
	for _, h := range hits {
		d.takeTokens(h, r.at, true)
		d.scheduleSettling(h, r)
	}
}

// takeTokens decides one hit by its bucket, and charges it if commit is true.
func (d *decider) takeTokens(h match.Hit, now quota.Instant, commit bool) quota.Result {
	if d.set.Policies[h.Policy].Adaptive.Max > 0 {
		return quota.Result{Allowed: true} // New reports this policy as adaptive.
	}
	limit, largest := d.limitOf(h)
	b, known := d.buckets[h.Key]
	if !known {
		b = &bucket{params: limit.Params}
	}
	var result quota.Result
	if limit.InFlight {
		result = b.takePlace(limit, now, d.lasts, commit)
	} else if limit.Algorithm.Windowed() {
		w := largest.WindowsOf(h.Key) // All own limits share its time grid.
		w.Quota = limit.Quota
		if !commit {
			looked := quota.History{Last: b.history.Last, Marks: append([]quota.Mark{}, b.history.Marks...)}
			return w.Take(&looked, now, h.Cost)
		}
		result = w.Take(&b.history, now, h.Cost)
		b.full = now + quota.Instant(w.ResetAfter(&b.history, now))
	} else {
		after, in, r := limit.Params.TakeAs(b.params, b.tokens, now, h.Cost)
		result = r
		if commit {
			b.tokens, b.params = after, in
			b.full = now + quota.Instant(in.Owed(after, now))
		}
	}
	if commit && !known && h.Cost > 0 {
		d.storeBucket(h.Key, b, now)
	}
	return result
}

// limitOf returns the limit that decides a hit, and the configured limit that an own limit
// replaces.
func (d *decider) limitOf(h match.Hit) (limit, largest *policy.Limit) {
	largest = &d.limits[h.Limit]
	if h.Own == 0 {
		return largest, largest
	}
	own := d.own[h.Own-1]
	if d.set.Policies[h.Policy].Mode == policy.ModeLocal {
		own = largest.For(own.Quota*d.nodes, own.Params.Burst*d.nodes)
	}
	return &own, largest
}

// storeBucket stores a bucket. It drops buckets that have refilled, and others if that is not
// enough.
func (d *decider) storeBucket(key keyhash.Key, b *bucket, now quota.Instant) {
	if len(d.buckets) >= d.sweepAt {
		for k, old := range d.buckets {
			if old.full <= now {
				delete(d.buckets, k)
			}
		}
		d.sweepAt = min(max(4096, 2*len(d.buckets)), d.most)
	}
	d.forgotten += makeRoom(d.buckets, d.most)
	d.buckets[key] = b
}

// makeRoom drops entries of a map until it has fewer than most, and returns how many it dropped.
func makeRoom[V any](of map[keyhash.Key]V, most int) (forgotten int64) {
	for k := range of {
		if len(of) < most {
			break
		}
		delete(of, k)
		forgotten++
	}
	return forgotten
}

// identifyCaller returns the caller in the form of the policy's partition.
func (d *decider) identifyCaller(h match.Hit, a *match.Attributes, r *record) string {
	return keyLabel(d.set, &d.set.Policies[h.Policy], a, r)
}
