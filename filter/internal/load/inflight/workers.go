package inflight

import (
	"encoding/binary"

	"github.com/weir-proxy/weir/filter/internal/base/shareddata"
	"github.com/weir-proxy/weir/shared/quota"
)

const (
	// markEvery is the interval at which a worker that holds places shows that it runs.
	markEvery = quota.Second
	// deadAfter is the time without a new mark after which a worker counts as dead and its places
	// are free. Another worker must have watched for seenStill of that time: after an hour in which
	// the whole process was stopped, no mark is less than an hour old.
	deadAfter = 10 * quota.Second
	seenStill = 3 * quota.Second
	// longestLook bounds the time that one look counts.
	longestLook = markEvery * 3 / 2
	// watchFor is the time for which a worker shows that it runs, and watches, after it last wanted
	// a place. A worker without places does no harm if it is taken for dead.
	watchFor = 30 * quota.Second
	// maxAttempts bounds each compare-and-swap loop. An attempt fails only because another worker's
	// attempt succeeded.
	maxAttempts = 1000
	maxWorkers  = 4096
	workerSize  = 4 + 8
)

// workers are the workers of the process that hold places. Each worker writes the time into its own
// mark, in one value that all workers read. A worker whose mark no longer changes has lost its
// memory, like a virtual machine after a trap, and its requests cannot give their places back.
type workers struct {
	shared shareddata.Data
	key    shareddata.Key
	// own is this worker's number, 0 if it has none; next is the number that it will take.
	own, next uint32
	seen      []seen
	// looked is when this worker last read the marks. wanted is when it last wanted a place.
	looked, wanted quota.Instant
	// died counts the workers that this worker has found dead.
	died uint64
}

// seen is a worker and its mark.
type seen struct {
	worker uint32
	mark   quota.Instant
	// last is its mark at the last look, 0 before the first look. still is the time for which the
	// mark was seen unchanged.
	last  quota.Instant
	still quota.Span
}

// isAlive reports whether a worker is in the list. It reads the list again for a worker that joined
// after the last look.
func (w *workers) isAlive(worker uint32) bool {
	if worker == w.own || w.isKnown(worker) {
		return true
	}
	w.readMarks()
	return w.isKnown(worker)
}

// isKnown reports whether a worker is in the list as last read.
func (w *workers) isKnown(worker uint32) bool {
	for i := range w.seen {
		if w.seen[i].worker == worker {
			return true
		}
	}
	return false
}

// join adds this worker to the list. It reports false if it cannot.
func (w *workers) join(now quota.Instant) bool {
	for range maxAttempts {
		cas, found := w.readMarks()
		if len(w.seen) >= maxWorkers {
			return false
		}
		for w.next == 0 || w.isKnown(w.next) {
			w.next = w.next*1664525 + 1013904223
		}
		w.seen = append(w.seen, seen{worker: w.next, mark: now})
		if w.writeMarks(cas, found) {
			w.own, w.looked = w.next, now
			return true
		}
	}
	return false
}

// show renews this worker's mark, and drops workers whose marks do not change. It reports false if
// other workers took this worker for dead: then it must join again, with another number.
func (w *workers) show(now quota.Instant) bool {
	passed := min(quota.Span(now-w.looked), longestLook)
	w.looked = now
	for attempt := range maxAttempts {
		cas, found := w.readMarks()
		if !w.isKnown(w.own) {
			w.own, w.next = 0, w.next*1664525+1013904223
			return false
		}
		if attempt == 0 {
			w.countStill(passed)
		}
		died := w.dropDead(now)
		if w.writeMarks(cas, found) {
			w.died += died
			break
		}
	}
	return true
}

// countStill adds the time passed since the last look to the marks that have not changed.
func (w *workers) countStill(passed quota.Span) {
	for i := range w.seen {
		s := &w.seen[i]
		if s.mark == s.last {
			s.still += passed
		} else {
			s.last, s.still = s.mark, 0
		}
	}
}

// dropDead removes dead workers, and renews the mark of this worker.
func (w *workers) dropDead(now quota.Instant) (died uint64) {
	live := w.seen[:0]
	for _, s := range w.seen {
		if s.worker == w.own {
			s.mark = now
		} else if s.still >= seenStill && quota.Span(now-s.mark) >= deadAfter {
			died++
			continue
		}
		live = append(live, s)
	}
	w.seen = live
	return died
}

// readMarks reads the list from the shared data.
func (w *workers) readMarks() (cas uint32, found bool) {
	value, cas, found := w.shared.Get(w.key[:])
	known := w.seen
	w.seen = make([]seen, 0, len(value)/workerSize+1)
	for b := value; len(b) >= workerSize; b = b[workerSize:] {
		s := seen{worker: binary.LittleEndian.Uint32(b)}
		for _, k := range known {
			if k.worker == s.worker {
				s = k
			}
		}
		s.mark = quota.Instant(binary.LittleEndian.Uint64(b[4:]))
		w.seen = append(w.seen, s)
	}
	return cas, found
}

// writeMarks writes the list if no other worker has changed it.
func (w *workers) writeMarks(cas uint32, found bool) bool {
	b := make([]byte, workerSize*len(w.seen))
	for i, s := range w.seen {
		binary.LittleEndian.PutUint32(b[workerSize*i:], s.worker)
		binary.LittleEndian.PutUint64(b[workerSize*i+4:], uint64(s.mark))
	}
	return shareddata.Swap(w.shared, w.key[:], b, cas, found)
}
