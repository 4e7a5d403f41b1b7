package leasing

import (
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/lease"
	"github.com/weir-proxy/weir/shared/quota"
)

// Tokens that came for a request count as leased for as long as it may wait, and so keep a bucket
// from refilling. Where they were the last ones, the next request hears of a wait: its call says
// that they are used. A limit of one a second so tells a second, and not what is a bit above it. A
// bucket that hurries needs lease.Soon beside it: no call may follow while it could refill.

// usedMost is for how many buckets a VM remembers it.
const usedMost = 8

// lastUsed are the last tokens of buckets, used by requests.
type lastUsed struct {
	list [usedMost]lastTokens
	next int
}

// lastTokens are tokens of a term that requests have used.
type lastTokens struct {
	bucket keyhash.Key
	term   lease.Term
	tokens int64
	until  quota.Instant
	// known: the control plane hears of it.
	known bool
}

// note notes that requests use the last tokens of a bucket, which came for them.
func (u *lastUsed) note(l lastTokens) {
	u.list[u.next] = l
	u.next = (u.next + 1) % usedMost
}

// noteLast notes that the last tokens of a bucket are used if an answer has brought them. It
// reports whether a second less is then said to those that got none.
func (c *Client) noteLast(s *lineAnswer, nth, charged int) (again bool) {
	it, a := &s.items[nth], &s.answers[nth]
	if charged == 0 || a.Level >= it.need.Cost || a.Keep > 0 || s.late() || !it.need.tellsUse() {
		return false
	}
	c.lastUsedBy(s.call.purpose == forTrials).note(lastTokens{
		bucket: it.need.Bucket, term: a.Term, tokens: int64(charged) * it.need.Cost,
		until: lease.Expiry(s.call.sent, it.deadline()),
	})
	beyond := a.NotBefore % quota.Second
	return a.NotBefore > quota.Second && a.NotBefore != quota.Never && beyond > 0 && beyond <= lease.Untold
}

// lastUsedBy are the last tokens of buckets that requests have used, or that trials have. Either
// forget none of the others.
func (c *Client) lastUsedBy(trials bool) *lastUsed {
	if trials {
		return &c.lastTried
	}
	return &c.lastUsed
}

// take returns the last tokens of a bucket that the control plane has not heard of.
func (u *lastUsed) take(now quota.Instant, bucket *keyhash.Key) (back lease.Lease) {
	for i := range u.list {
		if l := &u.list[i]; l.bucket == *bucket && now < l.until && !l.known {
			l.known = true
			return lease.Lease{Used: l.tokens, Term: l.term}
		}
	}
	return back
}

// counts reports whether the control plane has heard that tokens are used. Such do not go back.
func (u *lastUsed) counts(bucket *keyhash.Key, term lease.Term) bool {
	for i := range u.list {
		if l := &u.list[i]; l.bucket == *bucket && l.term == term && l.known {
			return true
		}
	}
	return false
}
