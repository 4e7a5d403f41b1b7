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

// liftedFor is how long the document remembers that a ban was lifted. A replica that was cut off
// from the store for longer can bring the ban back.
const liftedFor = 24 * time.Hour

// Lifted records that the ban of a key was lifted, so that a replica that still has the ban does
// not bring it back.
type Lifted struct {
	Key      string    `json:"key"`
	Revision uint64    `json:"revision"`
	At       time.Time `json:"at"`
}

// hasEffect reports whether another replica may still have the ban.
func (l Lifted) hasEffect(now time.Time) bool { return now.Sub(l.At) < liftedFor }

// Changed records the last change of the orders for a scope.
type Changed struct {
	Policy   string    `json:"policy,omitempty"`
	Tier     string    `json:"tier,omitempty"`
	Revision uint64    `json:"revision"`
	At       time.Time `json:"at"`
}

// scope is the policy and the tier of an order.
type scope struct{ policy, tier string }

func (o Order) scope() scope   { return scope{o.Policy, o.Tier} }
func (c Changed) scope() scope { return scope{c.Policy, c.Tier} }

// noteChanges records the scopes whose order was another order before, or none. If all is true, the
// change replaced all orders, also orders that this replica does not know: then one revision,
// Swept, is recorded for all scopes.
func (o *Orders) noteChanges(before []Order, all bool) {
	if all {
		o.Changed, o.Swept = nil, o.Revision
		return
	}
	for _, list := range [][]Order{before, o.List} {
		for _, order := range list {
			previous, current := orderFor(before, order.scope()), orderFor(o.List, order.scope())
			if previous != nil && current != nil && previous.Same(*current) {
				continue
			}
			o.Changed = slices.DeleteFunc(o.Changed, func(c Changed) bool { return c.scope() == order.scope() })
			o.Changed = append(o.Changed, Changed{order.Policy, order.Tier, o.Revision, o.Time})
		}
	}
	// Forget lifted orders that no other replica can bring back any more.
	o.Changed = slices.DeleteFunc(o.Changed, func(c Changed) bool {
		return orderFor(o.List, c.scope()) == nil && o.Time.Sub(c.At) >= liftedFor
	})
}

// orderFor returns the order for a scope; nil if there is none.
func orderFor(list []Order, about scope) *Order {
	for i := range list {
		if list[i].scope() == about {
			return &list[i]
		}
	}
	return nil
}

// lastChange returns the last change of a scope.
func (o Orders) lastChange(about scope) Changed {
	for _, c := range o.Changed {
		if c.scope() == about {
			return c
		}
	}
	c := Changed{about.policy, about.tier, o.Swept, o.Time}
	if len(o.Changed) == 0 && o.Swept == 0 { // A list without recorded changes is as new as its stamp.
		c.Revision = o.Revision
	}
	return c
}

// joinOrders joins two lists of orders, scope by scope.
func joinOrders(a, b Orders) (joined Orders) {
	if b.isLater(a.Stamp) {
		a, b = b, a
	}
	if a.ID == b.ID {
		return a
	}
	// Collect the scopes of both lists.
	joined.Stamp, joined.Swept = a.Stamp, max(a.Swept, b.Swept)
	var scopes []scope
	for _, one := range slices.Concat(a.List, b.List) {
		scopes = append(scopes, one.scope())
	}
	for _, one := range slices.Concat(a.Changed, b.Changed) {
		scopes = append(scopes, one.scope())
	}
	// For each scope take the order of the later change.
	seen := map[scope]bool{}
	equalsA, equalsB := true, true
	for _, about := range scopes {
		if seen[about] {
			continue
		}
		seen[about] = true
		from, last := a, a.lastChange(about)
		if other := b.lastChange(about); other.Revision > last.Revision {
			from, last = b, other
		}
		order := orderFor(from.List, about)
		if order != nil {
			joined.List = append(joined.List, *order)
		}
		joined.Changed = append(joined.Changed, last)
		equalsA = equalsA && isSameOrder(order, orderFor(a.List, about))
		equalsB = equalsB && isSameOrder(order, orderFor(b.List, about))
	}
	// If the result equals one of the lists, keep the sequence and the stamp of that list.
	switch {
	case equalsA && joined.Swept == a.Swept:
		joined.List = a.List
	case equalsB && joined.Swept == b.Swept:
		joined.List, joined.Stamp = b.List, b.Stamp
	default: // Two replicas that join the same lists get the same ID.
		joined.Revision++
		joined.ID = joinedID(a.ID, b.ID)
	}
	return joined
}

// isSameOrder reports whether two orders are the same order; nil means no order.
func isSameOrder(a, b *Order) bool {
	return a == b || a != nil && b != nil && a.Same(*b) && a.Since.Equal(b.Since)
}

func joinedID(a, b string) string {
	sum := sha256.Sum256([]byte(a + " " + b))
	return hex.EncodeToString(sum[:16])
}

// joinDocuments returns a document with the orders and bans of both documents. For each scope it
// takes the later order or lifting, for each key the later ban or lifting; it takes the changed
// buckets of both. Later means the higher revision, because each change is made on top of all
// changes that its replica knows. With equal revisions a ban wins over a lifting. To swap a and b
// does not change the result. dropped is the number of bans without room.
func joinDocuments(a, b Document, now time.Time) (d Document, dropped int) {
	d = Document{Revision: max(a.Revision, b.Revision), Orders: joinOrders(a.Orders, b.Orders)}
	d.Freed = joinFreed(a.Freed, b.Freed, now)
	d.Bans, dropped = joinBans(a.Bans, b.Bans, now)
	return d, dropped
}

// isLater reports whether a change is later than another change. Two replicas without the store can
// make changes of the same revision: then the IDs decide, the same on both.
func (s Stamp) isLater(other Stamp) bool {
	return cmp.Or(cmp.Compare(s.Revision, other.Revision), cmp.Compare(s.ID, other.ID)) > 0
}

// mark is the last change of a key: a ban, or its lifting.
type mark struct {
	Ban
	lifted bool
}

// marks returns the changes of a list that still have an effect, sorted by revision.
func (b Bans) marks(now time.Time) []mark {
	var all []mark
	for _, ban := range b.List {
		if ban.InForce(now) {
			all = append(all, mark{Ban: ban})
		}
	}
	for _, l := range b.Lifted {
		if l.hasEffect(now) {
			all = append(all, mark{Ban{Key: l.Key, Revision: l.Revision, Since: l.At}, true})
		}
	}
	slices.SortFunc(all, mark.compare)
	return all
}

func (m mark) compare(other mark) int {
	return cmp.Or(cmp.Compare(m.Revision, other.Revision), cmp.Compare(m.Key, other.Key))
}

// same reports whether two marks are the same change.
func (m mark) same(other mark) bool { return m.compare(other) == 0 && m.lifted == other.lifted }

// joinBans joins two lists of bans.
func joinBans(a, b Bans, now time.Time) (joined Bans, dropped int) {
	if b.isLater(a.Stamp) {
		a, b = b, a
	}
	// Take the later mark of each key.
	ofA, ofB := a.marks(now), b.marks(now)
	last := map[string]mark{}
	for _, m := range append(slices.Clone(ofB), ofA...) {
		known, ok := last[m.Key]
		if !ok || m.Revision > known.Revision || m.Revision == known.Revision && !m.lifted {
			last[m.Key] = m
		}
	}
	kept, dropped := dropExcess(slices.SortedFunc(maps.Values(last), mark.compare))
	for _, m := range kept {
		if m.lifted {
			joined.Lifted = append(joined.Lifted, Lifted{m.Key, m.Revision, m.Since})
		} else {
			joined.List = append(joined.List, m.Ban)
		}
	}
	// If the result equals one of the lists, keep that list's stamp.
	joined.Stamp = a.Stamp
	switch {
	case slices.EqualFunc(kept, ofA, mark.same):
	case slices.EqualFunc(kept, ofB, mark.same):
		joined.Stamp = b.Stamp
	default: // Two replicas that join the same lists get the same ID.
		joined.ID = joinedID(a.ID, b.ID)
	}
	return joined, dropped
}

// dropExcess removes marks if there are too many: the later bans, which are counted, and the
// earlier liftings.
func dropExcess(all []mark) (kept []mark, dropped int) {
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
