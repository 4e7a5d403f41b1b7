package nodes

import (
	"context"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/weir-proxy/weir/controlplane/internal/access"
	"github.com/weir-proxy/weir/controlplane/internal/ground/every"
)

// maxRemembered bounds what a replica remembers by itself.
const maxRemembered = 10_000

// catchUpPause is how long a store that could not note a node is left alone.
const catchUpPause = 100 * time.Millisecond

// Registry is the nodes as this replica sees them. It remembers reports, so that it can answer
// while the store is away. Make one with New. It is safe for concurrent use.
type Registry struct {
	store Store
	now   func() time.Time

	mu sync.Mutex
	// count is what the store counted last, when it was asked at counted; added are nodes that have
	// polled for the first time and may be missing from it.
	count, added int64
	// heard is how many nodes had polled here lately by then: a store that has lost its state knows
	// each of them again with its next poll.
	heard      int64
	counted    time.Time
	counting   bool // the store is counting now
	remembered map[string]*memory
	// late are the keys of nodes that the store does not have as they are; catching: a goroutine
	// stores them.
	late     map[string]bool
	catching bool
	// changed counts the changes of nodes that a reader of the list would see.
	changed  uint64
	listed   []Node // for Active
	listedAt time.Time
	// doors is how many doors there were then.
	doors int64

	refusals refusals
}

// memory is what this replica knows from a node itself.
type memory struct {
	node Node
	// polled: it has polled here, which tells more of it than a report does. unsaved: the store
	// lacks its last report.
	polled, unsaved bool
}

// New makes a Registry over store; now tells when a count has become old, and when a node was seen
// that the store does not hold.
func New(store Store, now func() time.Time) *Registry {
	return &Registry{store: store, now: now, remembered: map[string]*memory{}, late: map[string]bool{}}
}

// Knows reports whether this replica remembers a process of a node.
func (r *Registry) Knows(id, boot string) bool {
	n := Node{ID: id, Boot: boot}.Clean()
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.remembered[n.Key()] != nil
}

// Touch notes that a node polls. Its texts are cleaned. What it reported stays. The error is the
// store's: the node is remembered here even so, and CatchUp is to be called.
func (r *Registry) Touch(ctx context.Context, n Node) error {
	n = n.Clean()
	n.Seen = r.now()
	r.mu.Lock()
	m := r.remember(n.Key())
	n.Reported = m.node.Reported
	first, unsaved := !m.polled, m.unsaved
	if first || !m.node.looksLike(n) {
		r.changed++
	}
	m.node, m.polled = n, true
	r.mu.Unlock()
	err := r.store.Touch(ctx, n)
	r.noted(n.Key(), first, err)
	if err != nil || !unsaved {
		return err
	}
	return r.save(ctx, n.Key(), n.Reported)
}

// Changed is a number that grows with each change of a node that this replica hears of: a first
// poll, another version or enforcement applied, another step of the failure ladder.
func (r *Registry) Changed() uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.changed
}

// looksLike reports whether a process of a node polls with nothing new but the time.
func (n Node) looksLike(other Node) bool {
	return n.Applied == other.Applied && n.Mark == other.Mark && n.Enforcement == other.Enforcement &&
		n.Refused == other.Refused && n.Reason == other.Reason && n.Filter == other.Filter && n.Zone == other.Zone
}

// noted takes in how the store took a node. The store may count it in a second only, so a first
// poll adds it to the count; before it is stored, a count that begins would take that back.
func (r *Registry) noted(key string, first bool, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if first {
		r.added++
	}
	if err != nil {
		r.late[key] = true
	}
}

// CatchUp stores what Touch could not, one node after another and each as it is remembered by then,
// until all are stored or ctx ends. A thousand nodes that acknowledge at once are so many calls
// that some are late; without it they would be unknown until their next poll. It returns at once if
// another does the same.
func (r *Registry) CatchUp(ctx context.Context) {
	r.mu.Lock()
	if r.catching {
		r.mu.Unlock()
		return
	}
	r.catching = true
	r.mu.Unlock()
	for n, ok := r.nextLate(ctx); ok; n, ok = r.nextLate(ctx) {
		if err := r.store.Touch(ctx, n); err == nil {
			r.touched(n)
			continue
		}
		select {
		case <-ctx.Done():
		case <-time.After(catchUpPause):
		}
	}
}

// nextLate is a node that the store does not have as it is. Without one, or at the end of ctx,
// catching up is over.
func (r *Registry) nextLate(ctx context.Context) (Node, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for key := range r.late {
		if m := r.remembered[key]; m != nil && ctx.Err() == nil {
			return m.node, true
		}
		delete(r.late, key)
	}
	r.catching = false
	return Node{}, false
}

// touched notes that the store has a node as it was then, unless it has polled again: what it said
// later may have been overwritten.
func (r *Registry) touched(n Node) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if m := r.remembered[n.Key()]; m == nil || m.node.Seen.Equal(n.Seen) {
		delete(r.late, n.Key())
	}
}

// Report notes what a process of a node says of its failure ladder. Another process of that name is
// another node, so what comes late from an earlier one changes nothing of the later. The error is
// the store's: the report is remembered here even so.
func (r *Registry) Report(ctx context.Context, id, boot string, said Reported) error {
	n := Node{ID: id, Boot: boot, Reported: said}.Clean()
	n.Seen = r.now()
	r.mu.Lock()
	m := r.remember(n.Key())
	if m.node.State != said.State || !maps.Equal(m.node.Steps, said.Steps) {
		r.changed++
	}
	m.node.Reported, m.unsaved = said, true
	if !m.polled {
		m.node = n
	}
	r.mu.Unlock()
	return r.save(ctx, n.Key(), said)
}

// save stores a report. One of a node that the store does not know is stored when it polls.
func (r *Registry) save(ctx context.Context, key string, said Reported) error {
	known, err := r.store.Report(ctx, key, said)
	if err != nil || !known {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if m := r.remembered[key]; m != nil && m.node.State == said.State && len(m.node.Steps) == len(said.Steps) {
		m.unsaved = false
	}
	return nil
}

// remember returns what is remembered of a node, and forgets another if that is too much. The lock
// is held.
func (r *Registry) remember(key string) *memory {
	if m := r.remembered[key]; m != nil {
		return m
	}
	if len(r.remembered) >= maxRemembered {
		oldest := ""
		for k, m := range r.remembered {
			if oldest == "" || m.node.Seen.Before(r.remembered[oldest].node.Seen) {
				oldest = k
			}
		}
		delete(r.remembered, oldest)
	}
	m := &memory{}
	r.remembered[key] = m
	return m
}

// List returns the nodes that polled lately, in the order of Key. While the store is away they are
// those that this replica heard of, and complete is false.
func (r *Registry) List(ctx context.Context) (all []Node, complete bool) {
	all, complete = r.everything(ctx)
	return slices.DeleteFunc(slices.Clone(all), func(n Node) bool { return n.Door }), complete
}

// everything is List with the doors.
func (r *Registry) everything(ctx context.Context) (all []Node, complete bool) {
	all, err := r.store.Nodes(ctx)
	r.mu.Lock()
	defer r.mu.Unlock()
	if err == nil {
		for i, n := range all {
			if m := r.remembered[n.Key()]; m != nil && m.unsaved {
				all[i].Reported = m.node.Reported
			}
		}
		return all, true
	}
	all, now := nil, r.now()
	for key, m := range r.remembered {
		if now.Sub(m.node.Seen) >= Forgotten {
			delete(r.remembered, key)
			continue
		}
		all = append(all, m.node)
	}
	slices.SortFunc(all, func(a, b Node) int { return strings.Compare(a.Key(), b.Key()) })
	return all, false
}

// Count is the number of nodes and doors that share the buckets, at least 1. It asks the store at
// most once a second, and for a moment. Nodes that poll here for the first time meanwhile are added
// to the last count; while the store is away, that holds.
func (r *Registry) Count(ctx context.Context) int64 {
	now := r.now()
	r.mu.Lock()
	if r.counting || !r.counted.IsZero() && now.Sub(r.counted) < countEvery {
		defer r.mu.Unlock()
		return r.atLeastHeard()
	}
	r.counted, r.counting = now, true // Callers that come meanwhile take the last count.
	added := r.added
	r.mu.Unlock()
	counted := make(chan struct{})
	go func() {
		defer close(counted)
		r.recount(access.ForGrants(context.WithoutCancel(ctx)), added)
	}()
	patience := time.NewTimer(countPatience)
	defer patience.Stop()
	select {
	case <-counted:
	case <-patience.C:
	case <-ctx.Done():
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.atLeastHeard()
}

// atLeastHeard is how many nodes there are by the last count. The lock is held.
func (r *Registry) atLeastHeard() int64 { return max(r.count+r.added, r.heard, 1) }

// recount has the store count. So many nodes have come here since the last count.
func (r *Registry) recount(ctx context.Context, added int64) {
	ctx, cancel := context.WithTimeout(ctx, countTime)
	defer cancel()
	count, err := r.store.CountNodes(ctx, Counted)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.counting = false
	if err != nil {
		return
	}
	r.count, r.heard = count, 0
	now := r.now()
	for _, m := range r.remembered {
		if m.polled && now.Sub(m.node.Seen) < Counted {
			r.heard++
		}
	}
	r.added -= added // Those who came while the store counted may be missing.
}

// activeEvery is how old the answer of Active may be: metrics may be read often.
const activeEvery = 5 * time.Second

// Active returns the nodes that share the buckets, as of some seconds ago at most. The slice is not
// to be changed.
func (r *Registry) Active(ctx context.Context) []Node {
	now := r.now()
	r.mu.Lock()
	listed, fresh := r.listed, !r.listedAt.IsZero() && now.Sub(r.listedAt) < activeEvery
	r.mu.Unlock()
	if fresh {
		return listed
	}
	all, _ := r.everything(ctx)
	doors := int64(0)
	active := slices.DeleteFunc(slices.Clone(all), func(n Node) bool {
		old := now.Sub(n.Seen) >= Counted
		if n.Door && !old {
			doors++
		}
		return old || n.Door
	})
	r.mu.Lock()
	defer r.mu.Unlock()
	r.listed, r.listedAt, r.doors = active, now, doors
	return active
}

// Fleet is how many Envoys share the buckets, and how many doors beside them: those of some seconds
// ago.
func (r *Registry) Fleet(ctx context.Context) (envoys, doors int64) {
	all := r.Count(ctx)
	r.Active(ctx)
	r.mu.Lock()
	defer r.mu.Unlock()
	return max(all-r.doors, 0), r.doors
}

// Open has this replica count among those that share the buckets, since it answers Envoy's own
// filters, until ctx ends.
func (r *Registry) Open(ctx context.Context) {
	door := Node{ID: "door", Boot: strconv.FormatUint(rand.Uint64(), 16), Door: true}
	touch := func(ctx context.Context) {
		if err := r.Touch(ctx, door); err != nil {
			r.CatchUp(ctx)
		}
	}
	touch(ctx)
	every.Period(ctx, doorEvery, touch)
}
