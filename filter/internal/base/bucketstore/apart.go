package bucketstore

import "github.com/weir-proxy/weir/shared/quota"

// Figures are the parameters by which a bucket counts: Params, or Windows for a Window entry. Own
// is not 0 if callers bring Params of their own. It is then the Entry.Limit of their common entry.
type Figures struct {
	Params  quota.Params
	Windows quota.Windows
	Own     uint32
}

// Apart gives a key a bucket for each Figures, so that plugins that share the tables never use each
// other's figures. A new bucket starts from the state of the last used bucket of the same key with
// other figures, if that bucket began at since or before: then it is of a policy set that was in
// force before this set. A bucket that began later is of a set that is in force beside this set.
//
// An entry's Generation is then the instant at which it began.
func (st *Store) Apart(since quota.Instant) { st.apart, st.since = true, since }

// setBegan sets the instant at which an entry began, if figures are apart; 0 means now.
func (st *Store) setBegan(began uint64, now quota.Instant) {
	if !st.apart {
		return
	}
	if began == 0 {
		began = uint64(now)
	}
	st.entry.Generation = began
}

// wanted is the bucket to find if figures are apart. Without Apart it is nil.
type wanted struct {
	figures Figures
	since   quota.Instant

	// before is the last used bucket of the same key with other figures, of all places that were
	// read. Its marks are copied to the field marks.
	before Entry
	found  bool
	marks  []quota.Mark
}

// wantedFor returns the bucket to find for a kind; nil if figures are not apart.
func (st *Store) wantedFor(kind Kind) *wanted {
	if !st.apart || kind != Local && kind != Window {
		return nil
	}
	st.want.figures, st.want.since, st.want.found = st.Figures, st.since, false
	return &st.want
}

// isSettled reports whether a bucket at its place is the wanted bucket, and no other bucket can be
// its start.
func (w *wanted) isSettled(e *Entry) bool {
	return !e.New && (w == nil || e.lastUsed() > w.since)
}

// matches reports whether an entry of the right key has the wanted figures. It remembers an entry
// with other figures as a possible start.
func (w *wanted) matches(e *Entry) bool {
	if w == nil || e.Limit == w.figures.Own && e.Windows == w.figures.Windows &&
		(w.figures.Own != 0 || e.Params == w.figures.Params) {
		return true
	}
	if e.Generation <= uint64(w.since) && (!w.found || e.lastUsed() >= w.before.lastUsed()) {
		w.before, w.found = *e, true
		w.marks = append(w.marks[:0], e.History.Marks...)
		w.before.History.Marks = w.marks
	}
	return false
}

// startEntry starts an entry from the remembered bucket, if the entry is new or was last used
// before that bucket.
func (w *wanted) startEntry(e *Entry) {
	if w == nil || !w.found || w.isSettled(e) || !e.New && e.lastUsed() >= w.before.lastUsed() {
		return
	}
	marks := append(e.History.Marks[:0], w.marks...)
	*e = w.before
	e.History.Marks, e.Generation = marks, 0
}

// lastUsed returns when the bucket was last used, by its own clock.
func (e *Entry) lastUsed() quota.Instant {
	if e.Kind == Window {
		return e.History.Last
	}
	return e.State.Last
}
