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

// maxRemembered bounds the nodes that a replica remembers.
const maxRemembered = 10_000

// catchUpPause is the pause after the store failed to record a node.
const catchUpPause = 100 * time.Millisecond

// Registry has the nodes as this replica sees them. It remembers reports, so that it can answer
// while the store is away. Make a Registry with New. It is safe for concurrent use.
type Registry struct {
	store Store
	now   func() time.Time

	mu sync.Mutex
	// count is the store's last count, made at counted; added is the number of nodes that have
	// polled for the first time since and may be missing in it.
	count, added int64
	// heard is the number of nodes that had polled here lately at that time: a store that has lost
	// its state learns each of them again only at its next poll.
	heard      int64
	counted    time.Time
	counting   bool // the store is counting now
	remembered map[string]*memory
	// late has the keys of nodes whose last state the store lacks; catching is true while a
	// goroutine stores them.
	late     map[string]bool
	catching bool
	// changed counts the changes of nodes that are visible in the list.
	changed  uint64
	listed   []Node // the last result of Active
	listedAt time.Time
	// doors is the number of doors at that time.
	doors int64

	refusals refusals
}

// memory is this replica's own knowledge of a node.
type memory struct {
	node Node
	// polled is true if the node has polled here, which says more about it than a report. unsaved
	// is true if the store lacks its last report.
	polled, unsaved bool
}

// New makes a Registry over store. now is the clock for the age of counts, and for nodes that only
// this replica knows.
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

// Touch records a poll of a node, with cleaned texts. Its last report stays. The error is an error
// of the store: the node is remembered here all the same, and CatchUp must be called.
func (r *Registry) Touch(ctx context.Context, n Node) error {
	n = n.Clean()
	n.Seen = r.now()
	r.mu.Lock()
	m := r.memoryOf(n.Key())
	n.Reported = m.node.Reported
	first, unsaved := !m.polled, m.unsaved
	if first || !m.node.looksLike(n) {
		r.changed++
	}
	m.node, m.polled = n, true
	r.mu.Unlock()
	err := r.store.Touch(ctx, n)
	r.noteStored(n.Key(), first, err)
	if err != nil || !unsaved {
		return err
	}
	return r.saveReport(ctx, n.Key(), n.Reported)
}

// Changed returns a number that grows with each change of a node that this replica sees: a first
// poll, another version or enforcement applied, another step of the failure ladder.
func (r *Registry) Changed() uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.changed
}

// looksLike reports whether only the time of the poll is new.
func (n Node) looksLike(other Node) bool {
	return n.Applied == other.Applied && n.Mark == other.Mark && n.Enforcement == other.Enforcement &&
		n.Refused == other.Refused && n.Reason == other.Reason && n.Filter == other.Filter && n.Zone == other.Zone
}

// noteStored records whether the store accepted a node. The store may count the node only in a
// second, so a first poll is added to the count; added before it is stored, it would be lost in a
// count that begins then.
func (r *Registry) noteStored(key string, first bool, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if first {
		r.added++
	}
	if err != nil {
		r.late[key] = true
	}
}

// CatchUp stores the nodes that Touch could not store, one after another and in their latest state,
// until all are stored or ctx ends. If a thousand nodes acknowledge at once, some calls are late;
// without CatchUp these nodes would be unknown until their next poll. It returns at once if another
// call does the same.
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
			r.noteTouched(n)
			continue
		}
		select {
		case <-ctx.Done():
		case <-time.After(catchUpPause):
		}
	}
}

// nextLate returns a node whose last state the store lacks. If there is none, or ctx has ended, it
// ends catching up.
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

// noteTouched records that the store has a node's state n, unless the node has polled again: its
// later state may have been overwritten.
func (r *Registry) noteTouched(n Node) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if m := r.remembered[n.Key()]; m == nil || m.node.Seen.Equal(n.Seen) {
		delete(r.late, n.Key())
	}
}

// Report records a report of a process about its failure ladder. Another process with the same id
// is another node, so a late report of an earlier process does not change the later process. The
// error is an error of the store: the report is remembered here all the same.
func (r *Registry) Report(ctx context.Context, id, boot string, said Reported) error {
	n := Node{ID: id, Boot: boot, Reported: said}.Clean()
	n.Seen = r.now()
	r.mu.Lock()
	m := r.memoryOf(n.Key())
	if m.node.State != said.State || !maps.Equal(m.node.Steps, said.Steps) {
		r.changed++
	}
	m.node.Reported, m.unsaved = said, true
	if !m.polled {
		m.node = n
	}
	r.mu.Unlock()
	return r.saveReport(ctx, n.Key(), said)
}

// saveReport stores a report. If the store does not know the node, the report is stored when the
// node polls.
func (r *Registry) saveReport(ctx context.Context, key string, said Reported) error {
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

// memoryOf returns the memory of a node, and forgets another node if there are too many. The lock
// is held.
func (r *Registry) memoryOf(key string) *memory {
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

// List returns the nodes that polled lately, sorted by Key. While the store is away it returns the
// nodes that this replica knows, and complete is false.
func (r *Registry) List(ctx context.Context) (all []Node, complete bool) {
	all, complete = r.listAll(ctx)
	return slices.DeleteFunc(slices.Clone(all), func(n Node) bool { return n.Door }), complete
}

// listAll returns the nodes like List, and the doors too.
func (r *Registry) listAll(ctx context.Context) (all []Node, complete bool) {
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

// Count returns the number of nodes and doors that share the buckets, at least 1. It asks the store
// at most once a second, and waits only a moment. Nodes that poll here for the first time in
// between are added to the last count, which is used while the store is away.
func (r *Registry) Count(ctx context.Context) int64 {
	now := r.now()
	r.mu.Lock()
	if r.counting || !r.counted.IsZero() && now.Sub(r.counted) < countEvery {
		defer r.mu.Unlock()
		return r.atLeastHeard()
	}
	r.counted, r.counting = now, true // Callers in the meantime use the last count.
	added := r.added
	r.mu.Unlock()
	// Count in the background, and wait a moment for the result.
	counted := make(chan struct{})
	go func() {
		defer close(counted)
		r.countAgain(access.ForGrants(context.WithoutCancel(ctx)), added)
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

// atLeastHeard returns the number of nodes by the last count. The lock is held.
func (r *Registry) atLeastHeard() int64 { return max(r.count+r.added, r.heard, 1) }

// countAgain counts the nodes in the store. added is the number of nodes that came here since the
// last count.
func (r *Registry) countAgain(ctx context.Context, added int64) {
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
	r.added -= added // Nodes that came while the store counted may be missing in the count.
}

// activeEvery is the maximum age of the answer of Active: metrics may be read often.
const activeEvery = 5 * time.Second

// Active returns the nodes that share the buckets, as of at most some seconds ago. The slice must
// not be changed.
func (r *Registry) Active(ctx context.Context) []Node {
	now := r.now()
	r.mu.Lock()
	listed, fresh := r.listed, !r.listedAt.IsZero() && now.Sub(r.listedAt) < activeEvery
	r.mu.Unlock()
	if fresh {
		return listed
	}
	all, _ := r.listAll(ctx)
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

// Fleet returns the number of Envoys that share the buckets, and the number of doors, as of some
// seconds ago.
func (r *Registry) Fleet(ctx context.Context) (envoys, doors int64) {
	all := r.Count(ctx)
	r.Active(ctx)
	r.mu.Lock()
	defer r.mu.Unlock()
	return max(all-r.doors, 0), r.doors
}

// Open counts this replica as a door that shares the buckets, since it answers Envoy's own filters,
// until ctx ends.
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
