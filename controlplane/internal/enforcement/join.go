package enforcement

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"maps"
	"slices"
	"time"

	"github.com/weir-proxy/weir/shared/wire"
)

// liftedFor is how long the document says that a ban was lifted. A replica that was cut off from
// the store for longer can bring the ban back.
const liftedFor = 24 * time.Hour

// Lifted says that the ban of a key was lifted, so that a replica that still holds the ban does not
// bring it back.
type Lifted struct {
	Key      string    `json:"key"`
	Revision uint64    `json:"revision"`
	At       time.Time `json:"at"`
}

// matters reports whether another replica may still hold the ban.
func (l Lifted) matters(now time.Time) bool { return now.Sub(l.At) < liftedFor }

// join returns a document with everything that two documents order: the later orders, the later
// list of changed buckets, and for each key the later of its bans and its lifting. Later is the
// higher revision, because a change is made on top of all that its replica knows; of a ban and a
// lifting with one revision the ban stays. The order of the two does not matter. Dropped is how
// many bans had no room.
func join(a, b Document, now time.Time) (d Document, dropped int) {
	d = Document{Revision: max(a.Revision, b.Revision), Orders: a.Orders, Freed: a.Freed}
	if b.Orders.after(a.Orders.Stamp) {
		d.Orders = b.Orders
	}
	if b.Freed.after(a.Freed.Stamp) {
		d.Freed = b.Freed
	}
	d.Bans, dropped = joinBans(a.Bans, b.Bans, now)
	return d, dropped
}

// after reports whether a change is later than another one. Two replicas without the store can make
// changes of one revision: then any order does that is the same on both.
func (s Stamp) after(other Stamp) bool {
	return cmp.Or(cmp.Compare(s.Revision, other.Revision), cmp.Compare(s.ID, other.ID)) > 0
}

// mark is the last change of a key: a ban, or that it was lifted.
type mark struct {
	Ban
	lifted bool
}

// marks returns the changes of a list that still matter, in the order of their revisions.
func (b Bans) marks(now time.Time) []mark {
	var all []mark
	for _, ban := range b.List {
		if ban.InForce(now) {
			all = append(all, mark{Ban: ban})
		}
	}
	for _, l := range b.Lifted {
		if l.matters(now) {
			all = append(all, mark{Ban{Key: l.Key, Revision: l.Revision, Since: l.At}, true})
		}
	}
	slices.SortFunc(all, mark.compare)
	return all
}

func (m mark) compare(other mark) int {
	return cmp.Or(cmp.Compare(m.Revision, other.Revision), cmp.Compare(m.Key, other.Key))
}

// same reports whether two marks are of one change.
func (m mark) same(other mark) bool { return m.compare(other) == 0 && m.lifted == other.lifted }

// joinBans joins two lists of bans.
func joinBans(a, b Bans, now time.Time) (joined Bans, dropped int) {
	if b.after(a.Stamp) {
		a, b = b, a
	}
	ofA, ofB := a.marks(now), b.marks(now)
	last := map[string]mark{}
	for _, m := range append(slices.Clone(ofB), ofA...) {
		known, ok := last[m.Key]
		if !ok || m.Revision > known.Revision || m.Revision == known.Revision && !m.lifted {
			last[m.Key] = m
		}
	}
	kept, dropped := bound(slices.SortedFunc(maps.Values(last), mark.compare))
	for _, m := range kept {
		if m.lifted {
			joined.Lifted = append(joined.Lifted, Lifted{m.Key, m.Revision, m.Since})
		} else {
			joined.List = append(joined.List, m.Ban)
		}
	}
	joined.Stamp = a.Stamp
	switch {
	case slices.EqualFunc(kept, ofA, mark.same):
	case slices.EqualFunc(kept, ofB, mark.same):
		joined.Stamp = b.Stamp
	default: // Two replicas that join the same lists make the same change.
		sum := sha256.Sum256([]byte(a.ID + " " + b.ID))
		joined.ID = hex.EncodeToString(sum[:16])
	}
	return joined, dropped
}

// bound leaves out of marks in their order what is too much: the later bans, which are counted, and
// the earlier liftings.
func bound(all []mark) (kept []mark, dropped int) {
	lifted := 0
	for _, m := range all {
		if m.lifted {
			lifted++
		}
	}
	bans := 0
	for _, m := range all {
		switch {
		case m.lifted && lifted > wire.MaxBans:
			lifted--
		case m.lifted:
			kept = append(kept, m)
		case bans == wire.MaxBans:
			dropped++
		default:
			bans++
			kept = append(kept, m)
		}
	}
	return kept, dropped
}
