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

// MaxBuckets is how many buckets are remembered at a time. Those that are full again are forgotten
// without loss; if more are in use, some are forgotten too early, which is counted.
const MaxBuckets = 1_000_000

// bucket is one bucket in virtual time.
type bucket struct {
	tokens  quota.State
	params  quota.Params // those that tokens are counted in
	history quota.History
	full    quota.Instant // from when on it equals an absent one
	// ends are when the requests in flight end, the first one first.
	ends []quota.Instant
	// waits are until when requests wait for a place.
	waits []quota.Instant
}

// decider decides requests by one policy set, with one exact bucket for all nodes.
type decider struct {
	set        *policy.Set
	index      match.Index
	matcher    match.Matcher
	classifier classify.Classifier
	limits     []policy.Limit // by their place, local ones for all nodes together
	nodes      int64
	buckets    map[keyhash.Key]*bucket
	offenders  map[keyhash.Key]*offender
	most       int
	// sweepAt is the number of buckets at which full ones are looked for.
	sweepAt   int
	forgotten int64
	// own are the limits that the request at hand brings figures for.
	own  []policy.Limit
	open []match.Hit
	// lasts is how long the request at hand is in flight.
	lasts quota.Span
	// alone: the hits that refused last are of one policy.
	alone bool
	// due is what is to be settled, the first one first.
	due []settling
}

// verdict is what a policy set makes of a request.
type verdict struct {
	// policy is the one that refuses; -1 if the request passes.
	policy int
	// banned requests are refused before any policy.
	banned bool
	// who is what tells the caller apart in the refusing policy.
	who string
	key keyhash.Key
	// shadows are the policies in shadow, or the candidates of policies, that would have refused.
	shadows []int
}

// newDecider compiles a set. A local limit counts once for each of nodes. Secret keys the hashes.
func newDecider(set *policy.Set, nodes int64, secret [16]byte) (*decider, error) {
	d := &decider{set: set, nodes: nodes, buckets: map[keyhash.Key]*bucket{}, offenders: map[keyhash.Key]*offender{},
		most: MaxBuckets, sweepAt: 4096}
	if err := d.index.Load(wire.AppendSnapshot(nil, wire.Snapshot{Version: 1, Secret: secret, Set: set})); err != nil {
		return nil, err
	}
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
				if p.Mode == policy.ModeLocal {
					var ok bool
					l, ok = times(l, nodes)
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

// times is a limit that each of n nodes has, for all of them; false if that cannot be counted
// exactly.
func times(l policy.Limit, n int64) (policy.Limit, bool) {
	p := l.Params
	if p.Num > quota.MaxUnits/n || p.Burst > quota.MaxUnits/p.Den/n || l.Quota > quota.MaxUnits/n {
		return l, false
	}
	l.Params.Num = p.Num * n
	l.Params.Burst = p.Burst * n
	l.Quota = l.Quota * n
	return l, true
}

// decide takes a request at its time, which must not run backwards.
func (d *decider) decide(r *record) verdict {
	v := verdict{policy: -1}
	d.settle(r.at)
	a := d.classifier.Of(r.headers, r.source, classify.RulesOf(&d.index))
	a.Properties, a.Consumers = r, r
	matched := d.matcher.Match(&d.index, &a)
	if matched.Access == match.Banned {
		v.banned, v.who = true, string(r.source)
		return v
	}
	d.own, d.open, d.lasts = matched.Own, d.open[:0], r.lasted
	for i, h := range matched.Hits {
		h = d.reserves(h)
		matched.Hits[i] = h
		if !h.Shadow {
			d.open = append(d.open, h)
		}
	}
	if s := d.penalised(matched.Subjects, r.at); s != nil && !slices.ContainsFunc(d.open, isSuspended) {
		return d.refuseBy(s, &a, r)
	}
	if at, reason := d.refusing(d.open, r.at); at >= 0 {
		h := d.open[at]
		d.offend(matched.Subjects, h.Policy, reason, r.at)
		v.policy = int(h.Policy)
		v.key = h.Key
		v.who = d.who(h, &a, r)
		d.lasts = 0 // It does not go on.
		d.watchAll(matched.Hits, matched.Subjects, r, &v)
		return v
	}
	d.charge(d.open, r)
	d.watchAll(matched.Hits, matched.Subjects, r, &v)
	return v
}

// watchAll tries the policies in shadow and the candidates of a request; of one that a policy alone
// has refused, the candidates of that.
func (d *decider) watchAll(rest []match.Hit, subjects []match.Subject, r *record, v *verdict) {
	for len(rest) > 0 {
		var run []match.Hit
		run, rest = decide.CutTrial(rest)
		tries := v.policy < 0 || decide.TriesRefused(&run[0], int(run[0].Policy) == v.policy, !d.alone)
		if !run[0].Shadow || !tries {
			continue
		}
		if d.watch(run, subjects, r) {
			v.shadows = append(v.shadows, int(run[0].Policy))
		}
	}
}

// watch reports whether a policy in shadow, or a candidate, would have refused a request, and
// charges it otherwise.
func (d *decider) watch(run []match.Hit, subjects []match.Subject, r *record) bool {
	if !run[0].Candidate && held(subjects, run[0].Policy) {
		return true
	}
	at, reason := d.refusing(run, r.at)
	if at < 0 {
		d.charge(run, r)
		return false
	}
	if !run[0].Candidate {
		d.offend(subjects, run[at].Policy, reason, r.at)
	}
	return true
}

func isSuspended(h match.Hit) bool { return h.Verdict == match.Suspended }

// refusing finds the hit that refuses, and why: the first of a suspended limit, else the first that
// refuses by itself, else the one that must wait longest; -1 if all allow. It notes whether one
// policy alone refuses. Nothing is charged.
func (d *decider) refusing(hits []match.Hit, now quota.Instant) (at int, reason policy.Reason) {
	at, d.alone = -1, true
	first, longest := 0, quota.Span(-1)
	for i, h := range hits {
		rank, wait := 1, quota.Never
		why, refuses := decide.RefusesAlone(h.Verdict)
		switch {
		case isSuspended(h):
			rank = 2
		case !refuses:
			result := d.take(h, now, false)
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

func (d *decider) charge(hits []match.Hit, r *record) {
	for _, h := range hits {
		d.take(h, r.at, true)
		d.later(h, r)
	}
}

// take looks at a bucket, and with commit charges it.
func (d *decider) take(h match.Hit, now quota.Instant, commit bool) quota.Result {
	if d.set.Policies[h.Policy].Adaptive.Max > 0 {
		return quota.Result{Allowed: true} // What New says of it.
	}
	limit, largest := d.limitOf(h)
	b, known := d.buckets[h.Key]
	if !known {
		b = &bucket{params: limit.Params}
	}
	var result quota.Result
	if limit.InFlight {
		result = b.fly(limit, now, d.lasts, commit)
	} else if limit.Algorithm.Windowed() {
		w := largest.WindowsOf(h.Key) // All figures of callers share its grid.
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
		d.remember(h.Key, b, now)
	}
	return result
}

// limitOf is the limit that a hit is decided by, and the one that it is the caller's own of.
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

// remember keeps a bucket, and forgets what is full again. If that is not enough, others are
// forgotten.
func (d *decider) remember(key keyhash.Key, b *bucket, now quota.Instant) {
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

// makeRoom forgets entries of a map that has as many as it may, and returns how many.
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

// who is the caller, as the policy's partition tells callers apart.
func (d *decider) who(h match.Hit, a *match.Attributes, r *record) string {
	return label(d.set, &d.set.Policies[h.Policy], a, r)
}
