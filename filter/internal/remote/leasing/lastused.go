package leasing

import (
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/lease"
	"github.com/weir-proxy/weir/shared/quota"
)

// Tokens granted to a request count as leased during the longest wait of a request, and the bucket
// does not refill meanwhile. If these were the last tokens, the next request's wait would be too
// long. So the next request's call reports that the tokens were used: a limit of one per second
// then names a wait of 1 second, and not a little more. For a bucket that hurries lease.Soon is
// needed too, because no call may follow while the bucket could refill.

// usedMost is the number of buckets whose last tokens a VM remembers.
const usedMost = 8

// lastUsed holds the last tokens of buckets, used by requests.
type lastUsed struct {
	list [usedMost]lastTokens
	next int
}

// lastTokens are tokens of one lease term that requests have used.
type lastTokens struct {
	bucket keyhash.Key
	term   lease.Term
	tokens int64
	until  quota.Instant
	// known: a call has reported it to the control plane.
	known bool
}

// note stores that requests use the last tokens of a bucket.
func (u *lastUsed) note(l lastTokens) {
	u.list[u.next] = l
	u.next = (u.next + 1) % usedMost
}

// noteLast notes the last tokens of a bucket if this answer brought them. It reports whether the
// waiting requests without tokens should ask again: their wait then becomes a second shorter.
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

// lastUsedBy returns the list for requests or the list for trials. The two lists do not push out
// each other's entries.
func (c *Client) lastUsedBy(trials bool) *lastUsed {
	if trials {
		return &c.lastTried
	}
	return &c.lastUsed
}

// takeUnreported returns the last tokens of a bucket that the control plane does not know as used,
// and marks them as reported.
func (u *lastUsed) takeUnreported(now quota.Instant, bucket *keyhash.Key) (back lease.Lease) {
	for i := range u.list {
		if l := &u.list[i]; l.bucket == *bucket && now < l.until && !l.known {
			l.known = true
			return lease.Lease{Used: l.tokens, Term: l.term}
		}
	}
	return back
}

// wasReported reports whether the control plane knows that tokens are used. Such tokens do not go
// back.
func (u *lastUsed) wasReported(bucket *keyhash.Key, term lease.Term) bool {
	for i := range u.list {
		if l := &u.list[i]; l.bucket == *bucket && l.term == term && l.known {
			return true
		}
	}
	return false
}
