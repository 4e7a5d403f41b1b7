package inflight

import "github.com/weir-proxy/weir/shared/quota"

// wants notes that the worker wants a place. It reports false if the worker can hold none.
func (b *Book) wants(now quota.Instant) bool {
	w := &b.workers
	w.wanted = now
	return w.own != 0 && now < w.looked+quota.Instant(deadAfter/2) || b.show(now)
}

// shows reports whether the worker must show that it runs: while it holds places, and for a while
// after.
func (b *Book) shows() bool {
	w := &b.workers
	return w.own != 0 && (len(b.buckets) > 0 || w.looked < w.wanted+quota.Instant(watchFor))
}

// show shows that the worker runs. It reports false if it cannot.
func (b *Book) show(now quota.Instant) bool {
	w := &b.workers
	if w.own != 0 && w.show(now) {
		return true
	}
	if !w.join(now) {
		return false
	}
	b.restore(now) // Others may have taken this worker for dead, and its places.
	return true
}

// restore stores in the cells of all buckets what this worker has in flight. A cell may know
// nothing of this worker, and may have no limit.
func (b *Book) restore(now quota.Instant) {
	for _, k := range b.buckets {
		if k.used > 0 || k.isPending {
			c := b.prepare(nil, now)
			c.limit, c.generation = k.limit, k.generation
			b.store(k, 0)
		}
	}
}
