package leases

import (
	"cmp"
	"slices"
	"sync"

	"github.com/weir-proxy/weir/shared/inflight"
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/lease"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/wire"
)

// GivenBackIn is the time in which every control plane has given back to a store the permits that
// it lost, as far as the control plane remembers them.
const GivenBackIn = quota.Second

// mostLent bounds the remembered holders in each span of a lease, some 170 bytes each.
const mostLent = 100_000

// prefixLag is the longest time by which an answer can arrive earlier than an answer that the store
// wrote before it.
const prefixLag = quota.Second

// Lent remembers the answers of a control plane to claims of permits, for as long as permits last.
// For all permits of nodes, some control plane has answered a claim. So all control planes together
// can give back to a store the permits that it lost. The number of remembered holders is bounded:
// while there are more, only the nodes know all. The zero value is empty. It is safe for concurrent
// use.
type Lent struct {
	// Most bounds the holders in a span; 0 means 100 000.
	Most int

	mu sync.Mutex
	// young has the answers of the current span of a lease, old the answers of the span before.
	young, old map[holder]held
	since      quota.Instant
	// whole is the time from which all permits are remembered again.
	whole quota.Instant
}

// holder is a node and a bucket whose permits it holds.
type holder struct {
	bucket keyhash.Key
	node   inflight.Node
}

// held is the permits of a node by its last answer, and the time of that answer.
type held struct {
	seq                 uint64
	permits, lent, most int64
	at                  quota.Instant
}

// Note remembers answers to claims. now is the time of any clock that does not go back.
func (l *Lent) Note(items []Item, grants []lease.Grant, now quota.Instant) {
	for i := range items {
		if it := &items[i]; it.Kind == wire.KindClaim && i < len(grants) && grants[i].FullAfter > 0 {
			l.noteAnswer(holder{it.Bucket, it.Claim.Node}, &it.Claim, grants[i].Keep, now)
		}
	}
}

func (l *Lent) noteAnswer(h holder, c *inflight.Claim, granted int64, now quota.Instant) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.young == nil || now >= l.since+quota.Instant(inflight.TTL) {
		l.old, l.young, l.since = l.young, map[holder]held{}, now
	}
	known, ok := l.young[h]
	switch {
	case !ok && len(l.young) >= cmp.Or(l.Most, mostLent):
		l.whole = now + quota.Instant(inflight.TTL)
	case !ok || known.seq <= c.Seq:
		l.young[h] = held{seq: c.Seq, permits: max(granted, c.Hold), lent: granted, most: c.Limit, at: now}
	}
}

// KnownIn returns the time after which all permits are known again that a store has lost: from the
// memory of control planes, or, if this control plane could not remember all, from the nodes. In
// the second case the memory does not prove that a store has lost nothing.
func (l *Lent) KnownIn(now quota.Instant) quota.Span {
	l.mu.Lock()
	defer l.mu.Unlock()
	if now < l.whole {
		return inflight.RenewedIn
	}
	return GivenBackIn
}

// Claim is an answered claim.
type Claim struct {
	Item
	at quota.Instant
}

// Claims returns claims to be repeated: the permits that nodes may hold at now of the buckets asked
// for, the latest answer first. A repeated claim changes nothing, and a claim that is older than
// another claim of the node does not count.
func (l *Lent) Claims(now quota.Instant, asked func(keyhash.Key) bool) (claims []Claim) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, all := range []map[holder]held{l.young, l.old} {
		for h, v := range all {
			newer, ok := l.young[h]
			if !asked(h.bucket) || now >= v.at+quota.Instant(inflight.TTL) || ok && newer != v {
				continue
			}
			again := Item{Bucket: h.bucket, Kind: wire.KindClaim, Claim: inflight.Claim{
				Node: h.node, Seq: v.seq, Hold: v.permits, Lent: v.lent, Limit: v.most, Nodes: 1,
			}}
			claims = append(claims, Claim{at: v.at, Item: again})
		}
	}
	slices.SortFunc(claims, func(a, b Claim) int { return cmp.Compare(b.at, a.at) })
	return claims
}

// Latest returns the claims by which a store proves that it has lost nothing: a store loses the
// latest writes first. Claims at the end of their lease are left out, because the store may have
// dropped them.
func Latest(claims []Claim, now quota.Instant) []Claim {
	n := 0
	for n < len(claims) && claims[n].at+quota.Instant(prefixLag) >= claims[0].at &&
		now < claims[n].at+quota.Instant(inflight.TTL-prefixLag) {
		n++
	}
	return claims[:n]
}
