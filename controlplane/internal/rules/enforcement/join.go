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

// Changed says when orders about a scope were changed last.
type Changed struct {
	Policy   string    `json:"policy,omitempty"`
	Tier     string    `json:"tier,omitempty"`
	Revision uint64    `json:"revision"`
	At       time.Time `json:"at"`
}

// scope is what an order is about.
type scope struct{ policy, tier string }

func (o Order) scope() scope   { return scope{o.Policy, o.Tier} }
func (c Changed) scope() scope { return scope{c.Policy, c.Tier} }

// note notes what a change of the orders from those before has changed. All: it replaced whatever
// there was, also orders that this replica does not know.
func (o *Orders) note(before []Order, all bool) {
	if all {
		o.Changed, o.Swept = nil, o.Revision
		return
	}
	for _, list := range [][]Order{before, o.List} {
		for _, one := range list {
			was, is := of(before, one.scope()), of(o.List, one.scope())
			if was != nil && is != nil && was.Same(*is) {
				continue
			}
			o.Changed = slices.DeleteFunc(o.Changed, func(c Changed) bool { return c.scope() == one.scope() })
			o.Changed = append(o.Changed, Changed{one.Policy, one.Tier, o.Revision, o.Time})
		}
	}
	o.Changed = slices.DeleteFunc(o.Changed, func(c Changed) bool {
		return of(o.List, c.scope()) == nil && o.Time.Sub(c.At) >= liftedFor
	})
}

// of is the order about a scope, nil if there is none.
func of(list []Order, about scope) *Order {
	for i := range list {
		if list[i].scope() == about {
			return &list[i]
		}
	}
	return nil
}

// last is the last change about a scope.
func (o Orders) last(about scope) Changed {
	for _, c := range o.Changed {
		if c.scope() == about {
			return c
		}
	}
	c := Changed{about.policy, about.tier, o.Swept, o.Time}
	if len(o.Changed) == 0 && o.Swept == 0 { // A list that remembers no change is as late as itself.
		c.Revision = o.Revision
	}
	return c
}

// joinOrders joins two lists of orders, scope by scope.
func joinOrders(a, b Orders) (joined Orders) {
	if b.after(a.Stamp) {
		a, b = b, a
	}
	if a.ID == b.ID {
		return a
	}
	joined.Stamp, joined.Swept = a.Stamp, max(a.Swept, b.Swept)
	var scopes []scope
	for _, one := range slices.Concat(a.List, b.List) {
		scopes = append(scopes, one.scope())
	}
	for _, one := range slices.Concat(a.Changed, b.Changed) {
		scopes = append(scopes, one.scope())
	}
	seen := map[scope]bool{}
	ofA, ofB := true, true
	for _, about := range scopes {
		if seen[about] {
			continue
		}
		seen[about] = true
		from, last := a, a.last(about)
		if other := b.last(about); other.Revision > last.Revision {
			from, last = b, other
		}
		is := of(from.List, about)
		if is != nil {
			joined.List = append(joined.List, *is)
		}
		joined.Changed = append(joined.Changed, last)
		ofA = ofA && equal(is, of(a.List, about))
		ofB = ofB && equal(is, of(b.List, about))
	}
	switch {
	case ofA && joined.Swept == a.Swept:
		joined.List = a.List // In its order.
	case ofB && joined.Swept == b.Swept:
		joined.List, joined.Stamp = b.List, b.Stamp
	default: // Two replicas that join the same lists make the same change.
		joined.Revision++
		joined.ID = joinedID(a.ID, b.ID)
	}
	return joined
}

// equal reports whether two orders, or none, are one.
func equal(a, b *Order) bool {
	return a == b || a != nil && b != nil && a.Same(*b) && a.Since.Equal(b.Since)
}

func joinedID(a, b string) string {
	sum := sha256.Sum256([]byte(a + " " + b))
	return hex.EncodeToString(sum[:16])
}

// join returns a document with everything that two documents order: for each scope the later order
// or its lifting, the changed buckets of both, and for each key the later of its bans and its
// lifting. Later is the higher revision, because a change is made on top of all that its replica
// knows; of a ban and a lifting with one revision the ban stays. The order of the two does not
// matter. Dropped is how many bans had no room.
func join(a, b Document, now time.Time) (d Document, dropped int) {
	d = Document{Revision: max(a.Revision, b.Revision), Orders: joinOrders(a.Orders, b.Orders)}
	d.Freed = joinFreed(a.Freed, b.Freed, now)
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
		joined.ID = joinedID(a.ID, b.ID)
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
