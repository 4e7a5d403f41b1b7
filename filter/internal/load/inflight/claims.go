package inflight

import (
	"github.com/weir-proxy/weir/shared/inflight"
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/quota"
)

const (
	// againAfter is the pause before a claim that could not be stored is tried again. lookAfter is
	// the pause between looks at a bucket while the control plane does not answer.
	againAfter = 10 * quota.Millisecond
	lookAfter  = quota.Second
)

// Claims makes the claims that are due, at most most claims of one policy set; none while the
// control plane does not answer. The slice is good until the next call.
func (b *Book) Claims(now quota.Instant, most int) []Claim {
	b.claims = b.claims[:0]
	if now < b.nextClaim {
		return nil
	}
	b.nextClaim = quota.Forever
	next, rest := quota.Forever, b.claiming[:0]
	for _, k := range b.claiming {
		if k.due <= now && (len(b.claims) == 0 || len(b.claims) < most && b.claims[0].Version == k.version) {
			b.makeClaim(k, now)
		}
		if k.due == quota.Forever || !k.leased {
			k.isClaiming = false
			b.forgetBucket(k)
			continue
		}
		rest = append(rest, k)
		next = min(next, k.due)
	}
	clear(b.claiming[len(rest):])
	b.claiming = rest
	if b.nextClaim = next; b.Away {
		b.nextClaim = max(next, now+quota.Instant(lookAfter))
	}
	return b.claims
}

// makeClaim makes the claim of a bucket, if it is due.
func (b *Book) makeClaim(k *bucket, now quota.Instant) {
	c := b.prepareChange(nil, now)
	c.claims = true
	if !b.storeChange(k, k.have-k.used) {
		k.due = now + quota.Instant(againAfter)
	} else if c.claimed {
		b.claims = append(b.claims, Claim{Key: k.key, Limit: k.index, Version: k.version, Claim: c.claim})
	}
}

// Learn takes in the answer to a bucket's claim with the number seq.
func (b *Book) Learn(key keyhash.Key, seq uint64, a inflight.Answer, now quota.Instant) {
	k := b.buckets[key]
	if k == nil || !k.leased {
		return
	}
	c := b.prepareChange(nil, now)
	c.seq, c.answer = seq, a
	if b.storeChange(k, k.have-k.used) {
		b.serveWaiters(k, now)
	}
}

// Unanswered ends the waiting seats of a bucket that the control plane has known nothing of since
// the instant since.
func (b *Book) Unanswered(key keyhash.Key, since quota.Instant) {
	k := b.buckets[key]
	for k != nil && len(k.waiters) > 0 && k.leased {
		s := k.waiters[0]
		s.State, s.Room, s.Since = Unanswered, 0, since
		b.resolveSeat(k, 0)
	}
}
