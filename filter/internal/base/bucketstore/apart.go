package bucketstore

import "github.com/weir-proxy/weir/shared/quota"

// Figures are what a bucket is counted by: Params, or Windows for a Window entry. Own is not 0 if
// callers bring Params of their own; it is then the Entry.Limit of all of them.
type Figures struct {
	Params  quota.Params
	Windows quota.Windows
	Own     uint32
}

// Apart gives a key one bucket for each Figures that it is counted by, so that plugins that share
// the tables never use each other's figures. A new bucket starts from the one with other figures,
// as it was when it was last used, if that one began at since or before: then it belongs to a
// policy set that was in force before this one. A bucket that began later belongs to a set beside
// it.
//
// An entry's Generation is then the time when it began.
func (st *Store) Apart(since quota.Instant) { st.apart, st.since = true, since }

// date notes when an entry began, if figures are apart; unknown means now.
func (st *Store) date(began uint64, now quota.Instant) {
	if !st.apart {
		return
	}
	if began == 0 {
		began = uint64(now)
	}
	st.entry.Generation = began
}

// wanted is the bucket that find looks for, if figures are apart; otherwise it is nil.
type wanted struct {
	figures Figures
	since   quota.Instant

	// before is the last used bucket of the same key with other figures; its marks are in the
	// buffer.
	before Entry
	found  bool
	marks  []quota.Mark
}

// wanted is what find looks for.
func (st *Store) wanted(kind Kind) *wanted {
	if !st.apart || kind != Local && kind != Window {
		return nil
	}
	st.want.figures, st.want.since = st.Figures, st.since
	return &st.want
}

func (w *wanted) begin() {
	if w != nil {
		w.found = false
	}
}

// is reports whether an entry of the right key has the right figures. Otherwise it remembers the
// entry if that came before.
func (w *wanted) is(e *Entry) bool {
	if w == nil || e.Limit == w.figures.Own && e.Windows == w.figures.Windows &&
		(w.figures.Own != 0 || e.Params == w.figures.Params) {
		return true
	}
	if e.Generation <= uint64(w.since) && (!w.found || e.last() > w.before.last()) {
		w.before, w.found = *e, true
		w.marks = append(w.marks[:0], e.History.Marks...)
		w.before.History.Marks = w.marks
	}
	return false
}

// settle lets an entry start from the one before, if it is new or was last used before that one.
func (w *wanted) settle(e *Entry) {
	if w == nil || !w.found || !e.New && (e.last() >= w.before.last() || e.last() > w.since) {
		return
	}
	marks := append(e.History.Marks[:0], w.marks...)
	*e = w.before
	e.History.Marks, e.Generation = marks, 0
}

// last is when the bucket was last used, by its own clock.
func (e *Entry) last() quota.Instant {
	if e.Kind == Window {
		return e.History.Last
	}
	return e.State.Last
}
