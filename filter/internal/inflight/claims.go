package inflight

import (
	"github.com/weir-proxy/weir/shared/inflight"
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/quota"
)

const (
	// againAfter is when a claim is tried again that could not be noted, and lookAfter how often a
	// bucket is looked at while the control plane does not answer.
	againAfter = 10 * quota.Millisecond
	lookAfter  = quota.Second
)

// Claim is a claim of permits of one bucket, to be sent to the control plane.
type Claim struct {
	Key keyhash.Key
	// Limit is the index of the limit among all limits of the policy set Version.
	Limit   uint32
	Version uint64
	inflight.Claim
}

// lease is what a worker knows of a bucket whose limit is over all nodes.
type lease struct {
	// leased: the limit is over all nodes. isClaiming: the bucket is among those of which permits
	// are claimed.
	leased, isClaiming bool
	index              uint32
	// version is that of the policy set of the last request.
	version uint64
	// due is when the next claim is.
	due quota.Instant
	// idleSince is since when permits lie idle that other nodes may need, 0 if none does.
	idleSince quota.Instant
	// free is how many permits no node had by the last answer.
	free int64
	// sent is when the claim left that has no answer yet, 0 if there is none.
	sent quota.Instant
	// asks: the control plane may have a permit. wanted: one is to be had for a request that does
	// not wait.
	asks, wanted bool
}

// permitChange is the part of a change that concerns permits.
type permitChange struct {
	now quota.Instant
	// leased: the limit is over all nodes. beyond is up to how many requests on_failure admits.
	leased bool
	beyond int64
	// away: the control plane does not answer, so nothing is claimed.
	away bool
	// claims: a claim is to be made, if one is due. seq and answer, if it counts, are an answer.
	claims bool
	seq    uint64
	answer inflight.Answer
	load   inflight.Load

	// claimed: there is a claim to be sent.
	claimed bool
	claim   inflight.Claim
	// permits are those behind the change.
	permits inflight.Permits
}

// updatePermits brings the permits of a cell up to date with what is in flight, and reports whether
// that changes them. One that has nothing to do with the bucket any more is forgotten.
func (c *change) updatePermits(cell *inflight.Cell) (write bool) {
	p := &cell.Permits
	if used := p.Used && !c.away || c.more && !c.away; used != p.Used {
		p.Used, write = used, true
	}
	c.load.Limit, c.load.InFlight = cell.Limit, cell.Held()
	if c.claimed = c.claims && !c.away && p.Due(c.now, c.load) <= c.now; c.claimed {
		c.claim, write = p.Ask(c.now, c.load), true
		cell.Admit(c.now, true, c.beyond)
	}
	if p.Due(c.now, c.load) == quota.Forever && !p.None() {
		*p, write = inflight.Permits{}, true
	}
	c.permits = *p
	return write
}

// learnOf notes what a change has found out about a bucket's permits.
func (b *Book) learnOf(k *bucket, c *change) {
	p := &c.permits
	if !p.Idle(c.now, c.load) {
		c.load.IdleSince = 0
	} else if c.load.IdleSince == 0 {
		c.load.IdleSince = c.now
	}
	k.until, k.free, k.sent, k.idleSince = p.Until, p.Free, p.Sent, c.load.IdleSince
	k.asks = p.Recorded < c.limit && !p.Empty(c.now)
	k.due = p.Due(c.now, c.load)
	if k.due == quota.Forever { // Claims takes it off the list.
		b.nextClaim = c.now
	}
	b.nextClaim = min(b.nextClaim, k.due)
}

// claimFor has permits of a seat's bucket claimed, if its limit is over all nodes.
func (b *Book) claimFor(k *bucket, s *Seat) {
	k.leased, k.index, k.version = s.Leased, s.Limit, s.Version
	if k.leased && !k.isClaiming {
		k.isClaiming = true
		b.claiming = append(b.claiming, k)
	}
}

// Claims makes the claims that are due, at most so many and of one policy set; none while the
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
			b.claim(k, now)
		}
		if k.due == quota.Forever || !k.leased {
			k.isClaiming = false
			b.forget(k)
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

// claim makes the claim of a bucket, if it is due.
func (b *Book) claim(k *bucket, now quota.Instant) {
	c := b.prepare(nil, now)
	c.claims = true
	if k.wanted {
		c.load.Waiting, k.wanted = 1, false
	}
	if !b.store(k, k.have-k.used) {
		k.due = now + quota.Instant(againAfter)
	} else if c.claimed {
		b.claims = append(b.claims, Claim{Key: k.key, Limit: k.index, Version: k.version, Claim: c.claim})
	}
}

// Want has a permit claimed for a seat that was full and does not wait.
func (b *Book) Want(s *Seat) {
	if k := b.buckets[s.Key]; k != nil && k.leased {
		k.wanted, k.due, b.nextClaim = true, 0, 0
	}
}

// Learn takes in the answer to the claim of a bucket with a number.
func (b *Book) Learn(key keyhash.Key, seq uint64, a inflight.Answer, now quota.Instant) {
	k := b.buckets[key]
	if k == nil || !k.leased {
		return
	}
	c := b.prepare(nil, now)
	c.seq, c.answer = seq, a
	if b.store(k, k.have-k.used) {
		b.serve(k, now)
	}
}

// Unanswered ends what waits for permits of a bucket of which the control plane knows nothing since
// an instant.
func (b *Book) Unanswered(key keyhash.Key, since quota.Instant) {
	k := b.buckets[key]
	for k != nil && len(k.waiters) > 0 && k.leased {
		s := k.waiters[0]
		s.State, s.Room, s.Since = Unanswered, 0, since
		b.resolve(k, 0)
	}
}

// giveUp ends a seat that has waited in vain, and reports whether it does.
func (k *bucket) giveUp(s *Seat, now quota.Instant, away bool) bool {
	central, over := k.leased && s.Beyond == 0, now >= s.Until
	switch {
	case central && (away || over && k.sent != 0):
		s.State, s.Since = Unanswered, 0
	case over, central && !s.Patient && k.sent == 0 && !k.asks:
		s.State = Full
	default:
		return false
	}
	s.Room = 0
	return true
}
