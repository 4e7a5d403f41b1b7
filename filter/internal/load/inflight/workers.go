package inflight

import (
	"encoding/binary"

	"github.com/weir-proxy/weir/filter/internal/base/shareddata"
	"github.com/weir-proxy/weir/shared/quota"
)

const (
	// markEvery is how often a worker that holds places shows that it runs.
	markEvery = quota.Second
	// deadAfter is how long a worker must have shown nothing until its places are free again. For
	// seenStill of it another one must have looked on: after an hour in which the whole process was
	// stopped, no worker has shown anything for an hour.
	deadAfter = 10 * quota.Second
	seenStill = 3 * quota.Second
	// longestLook bounds what one look counts.
	longestLook = markEvery * 3 / 2
	// watchFor is how long a worker shows that it runs, and looks on, after it last wanted a place.
	// One that holds none may well be taken for dead.
	watchFor = 30 * quota.Second
	// maxAttempts bounds each compare-and-swap loop. An attempt fails only because another worker's
	// succeeded.
	maxAttempts = 1000
	maxWorkers  = 4096
	workerSize  = 4 + 8
)

// workers is which workers of the process hold places. Each writes the time into a mark of its own
// in one value that all see. A worker whose mark stands still has lost its memory, as a virtual
// machine does that has trapped, and its requests cannot give their places back.
type workers struct {
	shared shareddata.Data
	key    shareddata.Key
	// own is this worker, 0 if it is not among them; next is the one that it will be.
	own, next uint32
	seen      []seen
	// looked is when the marks were last looked at, wanted when this worker last wanted a place.
	looked, wanted quota.Instant
	// died counts the workers that this one has found dead.
	died uint64
}

// seen is a worker with its mark.
type seen struct {
	worker uint32
	mark   quota.Instant
	// last is its mark at the last look, 0 before, and still for how long that has been seen to
	// stand still.
	last  quota.Instant
	still quota.Span
}

// lives reports whether a worker is among those that hold places. One that came after the last look
// is looked for.
func (w *workers) lives(worker uint32) bool {
	if worker == w.own || w.knows(worker) {
		return true
	}
	w.read()
	return w.knows(worker)
}

func (w *workers) knows(worker uint32) bool {
	for i := range w.seen {
		if w.seen[i].worker == worker {
			return true
		}
	}
	return false
}

// join makes this worker one of those that hold places.
func (w *workers) join(now quota.Instant) bool {
	for range maxAttempts {
		cas, found := w.read()
		if len(w.seen) >= maxWorkers {
			return false
		}
		for w.next == 0 || w.knows(w.next) {
			w.next = w.next*1664525 + 1013904223
		}
		w.seen = append(w.seen, seen{worker: w.next, mark: now})
		if w.write(cas, found) {
			w.own, w.looked = w.next, now
			return true
		}
	}
	return false
}

// show shows that this worker runs, and drops those whose marks stand still. It reports false if
// the others took this one for dead: then it must join anew, under another number.
func (w *workers) show(now quota.Instant) bool {
	passed := min(quota.Span(now-w.looked), longestLook)
	w.looked = now
	for attempt := range maxAttempts {
		cas, found := w.read()
		if !w.knows(w.own) {
			w.own, w.next = 0, w.next*1664525+1013904223
			return false
		}
		if attempt == 0 {
			w.look(passed)
		}
		died := w.drop(now)
		if w.write(cas, found) {
			w.died += died
			break
		}
	}
	return true
}

// look counts for how long marks have stood still, of which so much passed since the last look.
func (w *workers) look(passed quota.Span) {
	for i := range w.seen {
		s := &w.seen[i]
		if s.mark == s.last {
			s.still += passed
		} else {
			s.last, s.still = s.mark, 0
		}
	}
}

// drop takes out who is dead, and renews the mark of this worker.
func (w *workers) drop(now quota.Instant) (died uint64) {
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

// read takes in the value.
func (w *workers) read() (cas uint32, found bool) {
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

func (w *workers) write(cas uint32, found bool) bool {
	b := make([]byte, workerSize*len(w.seen))
	for i, s := range w.seen {
		binary.LittleEndian.PutUint32(b[workerSize*i:], s.worker)
		binary.LittleEndian.PutUint64(b[workerSize*i+4:], uint64(s.mark))
	}
	return shareddata.Swap(w.shared, w.key[:], b, cas, found)
}
