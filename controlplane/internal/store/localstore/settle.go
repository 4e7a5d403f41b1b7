package localstore

import (
	"github.com/weir-proxy/weir/controlplane/internal/grant/leases"
	"github.com/weir-proxy/weir/shared/lease"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/wire"
)

// reserve stores the grants of an item's requests, if their cost is known later. The item's shard
// is locked.
func (h *shard) reserve(it leases.Item, g lease.Grant) {
	asks := it.Kind == wire.KindAsk && it.Ask.Reserved != 0 && g.Waiting > 0
	if !asks || h.reserved.count+int(g.Waiting) > maxReserved {
		return
	}
	one := h.reservation(it)
	for nth := int64(1); nth <= g.Waiting; nth++ {
		h.reserved.add(it.Bucket, reservationName{it.Ask.Reserved, nth}, one)
	}
}

// reservation returns the tokens that each request of an item has just taken.
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

// settle settles a reservation, also in the draft's ledger of a rollout. The item's shard is
// locked.
func (h *shard) settle(now quota.Instant, it leases.Item) (g lease.Grant) {
	one, known := h.reserved.takeOut(it.Bucket, reservationName{it.Settles.Name, it.Settles.Nth})
	if !known {
		return g
	}
	var back int64
	if it.Ask.Windows.Quota == 0 {
		back = settleIn(&h.tokens, &h.draftTokens, now, it.Bucket, it.Ask, one.taken, it.Settles.Actual)
	} else {
		back = settleIn(&h.windows, &h.draftWindows, now, it.Bucket, it.Ask, one.taken, it.Settles.Actual)
	}
	return leases.SettledGrant(back)
}

// settleIn settles a reservation in both ledgers of a bucket. It returns the tokens that went back
// to the main ledger in parts of a token, below 0 if it took more. An absent draft's ledger starts
// as a copy of the main ledger.
func settleIn[L lease.Counted[L]](
	main, draft *table[L], now quota.Instant, bucket hash, ask lease.Ask, taken quota.Reservation, actual int64,
) (given int64) {
	for _, t := range []*table[L]{main, draft} {
		ledger, counted := t.all[bucket]
		if !counted && t == draft {
			continue
		}
		if after, back := ledger.Settle(now, ask, taken, actual); back != 0 {
			t.put(bucket, after)
			if t == main {
				given = back
			}
		}
	}
	return given
}
