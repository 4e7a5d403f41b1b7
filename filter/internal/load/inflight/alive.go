package inflight

import "github.com/weir-proxy/weir/shared/quota"

// ensureShown notes that the worker wants a place, and shows that it runs if that is due. It
// reports false if the worker can hold no place.
func (b *Book) ensureShown(now quota.Instant) bool {
	w := &b.workers
	w.wanted = now
	return w.own != 0 && now < w.looked+quota.Instant(deadAfter/2) || b.showAlive(now)
}

// mustShow reports whether the worker must show that it runs: while it holds places, and for
// watchFor after it last wanted a place.
func (b *Book) mustShow() bool {
	w := &b.workers
	return w.own != 0 && (len(b.buckets) > 0 || w.looked < w.wanted+quota.Instant(watchFor))
}

// showAlive shows that the worker runs. It reports false if it cannot.
func (b *Book) showAlive(now quota.Instant) bool {
	w := &b.workers
	if w.own != 0 && w.show(now) {
		return true
	}
	if !w.join(now) {
		return false
	}
	b.restoreCells(now) // The other workers may have taken this worker for dead, and taken its places.
	return true
}

// restoreCells stores the worker's requests in flight in the cells of all buckets. A cell may have
// no entry for this worker, and no limit.
func (b *Book) restoreCells(now quota.Instant) {
	for _, k := range b.buckets {
		if k.used > 0 || k.isPending {
			c := b.prepareChange(nil, now)
			c.limit, c.generation = k.limit, k.generation
			b.storeChange(k, 0)
		}
	}
}
