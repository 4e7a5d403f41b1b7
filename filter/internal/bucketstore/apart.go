package bucketstore

import "github.com/weir-proxy/weir/shared/quota"

// Figures are what a bucket is counted by: Params, or Windows of a Window entry. Own is not 0 where
// callers bring Params of their own, and is then the Entry.Limit of all of them.
type Figures struct {
	Params  quota.Params
	Windows quota.Windows
	Own     uint32
}

// Apart makes buckets go by their figures as well as by their key: a key has a bucket for each Figures that it is counted by, so
// plugins that share the tables never take each other's figures. A bucket that is not there starts from one with other
// figures, as that was when it was last used, if that one began at since or before: then a policy set with other figures was in
// force before this one. One that began later belongs to a set beside it.
//
// An entry's Generation is then when it began.
func (st *Store) Apart(since quota.Instant) { st.apart, st.since = true, since }

// date notes in an entry that goes by its figures when it began, which is now if that is not known.
func (st *Store) date(began uint64, now quota.Instant) {
	if !st.apart {
		return
	}
	if began == 0 {
		began = uint64(now)
	}
	st.entry.Generation = began
}

// wanted is the bucket that find looks for where buckets go by their figures; nil where they do not.
type wanted struct {
	figures Figures
	since   quota.Instant

	// before is the bucket of the same key with other figures that was used last; its marks are in the buffer.
	before Entry
	found  bool
	marks  []quota.Mark
}

// wanted is what find is to go by.
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

// is reports whether an entry of the right key is the one, and remembers it otherwise if it came before.
func (w *wanted) is(e *Entry) bool {
	if w == nil || e.Limit == w.figures.Own && (w.figures.Own != 0 || e.Params == w.figures.Params) && e.Windows == w.figures.Windows {
		return true
	}
	if e.Generation <= uint64(w.since) && (!w.found || e.last() > w.before.last()) {
		w.before, w.found = *e, true
		w.marks = append(w.marks[:0], e.History.Marks...)
		w.before.History.Marks = w.marks
	}
	return false
}

// settle has an entry start from the one before, if it is new or was last used before that.
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
