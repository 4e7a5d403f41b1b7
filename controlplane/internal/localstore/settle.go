package localstore

import (
	"github.com/weir-proxy/weir/controlplane/internal/leases"
	"github.com/weir-proxy/weir/shared/lease"
	"github.com/weir-proxy/weir/shared/quota"
)

// maxReserved bounds the open reservations of a shard. What one more takes is never given back.
const maxReserved = 16384

// reservationName names what the nth request of an ask has reserved of a bucket.
type reservationName struct {
	bucket hash
	name   uint64
	nth    int64
}

// open is a reservation that was not settled, and until when it can be.
type open struct {
	taken quota.Reservation
	until quota.Instant
}

// reserve notes what an item's requests were granted, if their cost is known later. Its shard is
// locked. The file does not have reservations: after a restart they stay charged.
func (h *shard) reserve(it leases.Item, g lease.Grant) {
	asks := it.Settles == nil && it.Returns == nil && it.Ask.Reserved != 0 && g.Waiting > 0
	if !asks || len(h.reserved)+int(g.Waiting) > maxReserved {
		return
	}
	one := h.reservation(it)
	for nth := int64(1); nth <= g.Waiting; nth++ {
		h.reserved[reservationName{it.Bucket, it.Ask.Reserved, nth}] = one
	}
}

// reservation is what each request of an item has just taken.
func (h *shard) reservation(it leases.Item) open {
	if it.Ask.Windows.Quota == 0 {
		return reservationIn(&h.tokens, &h.draftTokens, it)
	}
	return reservationIn(&h.windows, &h.draftWindows, it)
}

func reservationIn[L lease.Counted[L]](main, draft *table[L], it leases.Item) open {
	ledger := main.all[it.Bucket]
	if it.Draft {
		ledger = draft.all[it.Bucket]
	}
	taken := ledger.Reservation(it.Ask)
	return open{taken: taken, until: ledger.Counts(taken)}
}

// forgetReserved forgets the reservations that count no more.
func (h *shard) forgetReserved(now quota.Instant) {
	for r, one := range h.reserved {
		if one.until <= now {
			delete(h.reserved, r)
		}
	}
}

// settle settles a reservation, also in the draft of a rollout. Its shard is locked.
func (h *shard) settle(now quota.Instant, it leases.Item) (g lease.Grant) {
	name := reservationName{it.Bucket, it.Settles.Name, it.Settles.Nth}
	one, known := h.reserved[name]
	if !known {
		return g
	}
	delete(h.reserved, name)
	if it.Ask.Windows.Quota == 0 {
		settleIn(&h.tokens, &h.draftTokens, now, it.Bucket, it.Ask, one.taken, it.Settles.Actual)
	} else {
		settleIn(&h.windows, &h.draftWindows, now, it.Bucket, it.Ask, one.taken, it.Settles.Actual)
	}
	g.Waiting = 1
	return g
}

// settleIn settles a reservation in both ledgers of a bucket. A draft's that is absent starts as
// the main one.
func settleIn[L lease.Counted[L]](
	main, draft *table[L], now quota.Instant, bucket hash, ask lease.Ask, taken quota.Reservation, actual int64,
) {
	for _, t := range []*table[L]{main, draft} {
		ledger, counted := t.all[bucket]
		if !counted && t == draft {
			continue
		}
		if after, back := ledger.Settle(now, ask, taken, actual); back != 0 {
			t.put(bucket, after)
		}
	}
}
