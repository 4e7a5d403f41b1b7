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

// GivenBackIn is within how long every control plane has given a store back what it remembers of
// the permits that the store has lost.
const GivenBackIn = quota.Second

// mostLent bounds the holders that are remembered of each span of a lease, some 170 bytes each.
const mostLent = 100_000

// prefixLag is how much earlier than another answer one may come that a store wrote later.
const prefixLag = quota.Second

// Lent remembers what a control plane has answered to claims of permits, for as long as those last.
// Whatever permits nodes hold, some control plane has answered them, so all control planes together
// can give a store back what it has lost. It remembers a bounded number of holders: while there are
// more, nodes alone know all. The zero value remembers none. It is safe for concurrent use.
type Lent struct {
	// Most bounds the holders of a span, 100 000 by default.
	Most int

	mu sync.Mutex
	// young is of the current span of a lease, old of the one before.
	young, old map[holder]held
	since      quota.Instant
	// whole is from when on all is remembered that lasts.
	whole quota.Instant
}

// holder is who holds permits of which bucket.
type holder struct {
	bucket keyhash.Key
	node   inflight.Node
}

// held is what a node holds by its last answer, which came at an instant.
type held struct {
	seq                 uint64
	permits, lent, most int64
	at                  quota.Instant
}

// Note remembers the answers to claims, at now by any clock that does not step back.
func (l *Lent) Note(items []Item, grants []lease.Grant, now quota.Instant) {
	for i := range items {
		if it := &items[i]; it.Kind == wire.KindClaim && i < len(grants) && grants[i].FullAfter > 0 {
			l.note(holder{it.Bucket, it.Claim.Node}, &it.Claim, grants[i].Keep, now)
		}
	}
}

func (l *Lent) note(h holder, c *inflight.Claim, granted int64, now quota.Instant) {
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

// KnownIn is within how long from now all is known again that a store has lost: by what control
// planes remember, or if this one could not remember all, by what nodes say. Then what it remembers
// does not prove that a store has lost nothing.
func (l *Lent) KnownIn(now quota.Instant) quota.Span {
	l.mu.Lock()
	defer l.mu.Unlock()
	if now < l.whole {
		return inflight.RenewedIn
	}
	return GivenBackIn
}

// Claim is a claim that was answered.
type Claim struct {
	Item
	at quota.Instant
}

// Claims returns, as claims to be made again, what nodes may hold at now of the buckets that are
// asked for, that of the latest answer first. Made a second time a claim changes nothing, and one
// that a newer claim of the node has overtaken does not count.
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

// Latest returns those of Claims that prove, if a store knows them all, that it has lost none: it
// loses what it wrote last. Those of the end of their lease are not among them, since the store may
// have dropped them.
func Latest(claims []Claim, now quota.Instant) []Claim {
	n := 0
	for n < len(claims) && claims[n].at+quota.Instant(prefixLag) >= claims[0].at &&
		now < claims[n].at+quota.Instant(inflight.TTL-prefixLag) {
		n++
	}
	return claims[:n]
}
