package localstore

import (
	"github.com/weir-proxy/weir/controlplane/internal/grant/leases"
	"github.com/weir-proxy/weir/shared/lease"
	"github.com/weir-proxy/weir/shared/quota"
)

// maxReturned bounds the returns that a shard remembers. A further return is not taken.
const maxReturned = 16384

// returnName names a return of tokens of a bucket.
type returnName struct {
	bucket hash
	name   uint64
}

// takeBack takes tokens back, also in the draft's ledger of a rollout, once for each return. The
// item's shard is locked. The file does not contain the returns that were taken: no node repeats a
// return by itself.
func (h *shard) takeBack(now quota.Instant, it leases.Item) (g lease.Grant) {
	name, end := returnName{it.Bucket, it.Returns.Name}, it.Returns.Term.End(now)+quota.Instant(lease.Late)
	if _, known := h.returned[name]; known || end <= now || len(h.returned) >= maxReturned {
		return g
	}
	h.returned[name] = end
	if it.Ask.Windows.Quota == 0 {
		g.Keep = takeBackIn(&h.tokens, &h.draftTokens, now, it)
	} else {
		g.Keep = takeBackIn(&h.windows, &h.draftWindows, now, it)
	}
	return g
}

// takeBackIn takes tokens back in both ledgers of a bucket. It returns the larger number of both
// ledgers.
func takeBackIn[L lease.Counted[L]](main, draft *table[L], now quota.Instant, it leases.Item) (most int64) {
	for _, t := range []*table[L]{main, draft} {
		after, done := t.all[it.Bucket].TakeBack(now, it.Returns.Term, it.Returns.Back)
		if done != (lease.Back{}) {
			t.put(it.Bucket, after)
		}
		most = max(most, done.Unused)
	}
	return most
}

// forgetReturned forgets returns that are no longer taken because their term ended long ago.
func (h *shard) forgetReturned(now quota.Instant) {
	for r, until := range h.returned {
		if until <= now {
			delete(h.returned, r)
		}
	}
}
