package penalties

import (
	"cmp"
	"context"
	"log/slog"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/weir-proxy/weir/controlplane/internal/ground/audit"
	"github.com/weir-proxy/weir/controlplane/internal/ground/docs"
	"github.com/weir-proxy/weir/controlplane/internal/rules/policies"
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/wire"
)

const (
	// pageSize is the number of records in one read or write.
	pageSize = 500
	// auditEvery is the least time between two audit entries of a replica about begun penalties.
	auditEvery = time.Minute
	// auditedPolicies is the number of policies that such an entry names.
	auditedPolicies = 20
	// sweepEvery is the interval at which forgotten records are removed from memory.
	sweepEvery = time.Minute
)

// Sets provides policy sets. *policies.Service implements it.
type Sets interface {
	// At returns a version of the policy set, Active the versions in force.
	At(ctx context.Context, version uint64) (*policies.Compiled, error)
	Active() (policies.Active, <-chan struct{})
	// Load returns a version from the store, or from this replica if the store is away.
	Load(ctx context.Context, version uint64) (v policies.Version, away, err error)
}

// Meter counts reports of nodes.
type Meter interface {
	// PenaltyBegun counts a penalty of a policy.
	PenaltyBegun(policy string, shadow bool)
	// PenaltiesFull counts penalties for which the store had no room.
	PenaltiesFull(n int)
}

// Config configures a Service. All fields are required unless they say otherwise.
type Config struct {
	Store docs.Records
	Sets  Sets
	Now   func() time.Time
	Meter Meter
	// Log receives warnings that the store has lost penalties.
	Log *slog.Logger
	// Lost, if not nil, is called after each such loss.
	Lost func()
	// Random is used as Kept.Random.
	Random func() float64
}

// Service manages all penalties. It has a copy of the store's records, so nodes and lists cost no
// read of the store. Make a Service with New. It is safe for concurrent use.
type Service struct {
	Config
	kept Kept

	refreshing sync.Mutex

	mu      sync.Mutex
	loaded  bool
	state   docs.Head
	records map[keyhash.Key]*Record
	// order has the records by ascending revision. A record that has changed since is in it twice.
	order []place
	// drafts has, by version, the keys of records that only nodes of that version obey, without
	// pardons.
	drafts  map[uint64]map[keyhash.Key]bool
	changed chan struct{} // closed when a record changes
	swept   time.Time

	// begun counts penalties by policy since the last audit entry, which was at noted.
	begun map[string]int
	noted time.Time
}

type place struct {
	revision uint64
	key      keyhash.Key
}

// New makes a Service.
func New(c Config) *Service {
	s := &Service{
		Config: c, records: map[keyhash.Key]*Record{}, drafts: map[uint64]map[keyhash.Key]bool{},
		changed: make(chan struct{}), begun: map[string]int{},
	}
	s.kept = Kept{In: c.Store, Held: s.heldOf, Slot: make(chan struct{}, 1), Random: c.Random}
	if s.Lost == nil {
		s.Lost = func() {}
	}
	return s
}

// Revision returns the revision of the last change of a penalty that this replica has seen; 0 for
// none.
func (s *Service) Revision() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.state.Revision
}

// After returns the changes after a revision for a node with a version of the policy set, and a
// channel that is closed at the next change. news is true if there are changes.
func (s *Service) After(revision, version uint64) (m wire.Penalties, news bool, changed <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.loaded || revision >= s.state.Revision {
		return m, false, s.changed
	}
	m.Cleared, m.Revision = s.state.Cleared, s.state.Revision
	from, _ := slices.BinarySearchFunc(s.order, revision+1,
		func(p place, r uint64) int { return cmp.Compare(p.revision, r) })
	last := uint64(0)
	for _, p := range s.order[from:] {
		r := s.records[p.key]
		if r == nil || r.Revision != p.revision || revision == 0 && r.Level == 0 {
			continue // The record has changed since, or is a pardon that a new node need not know.
		}
		if len(m.Items)+mostItems > wire.MaxPenalties {
			m.Revision = last // The next poll brings the rest.
			break
		}
		last = p.revision
		m.Items = s.appendItems(m.Items, r, version)
	}
	return m, true, s.changed
}

// mostItems is the maximum number of items of one change.
const mostItems = 3

// appendItems adds a change in the form for nodes of a version. A node knows only one penalty of a
// caller. So a pardon ends it, and the caller's other penalties follow the pardon. The caller of
// appendItems holds the lock.
func (s *Service) appendItems(all []wire.Penalty, r *Record, version uint64) []wire.Penalty {
	caller := r.Caller()
	add := func(r *Record) {
		all = append(all, wire.Penalty{Key: caller, Level: uint8(r.Level), Until: r.Until})
	}
	if r.Level > 0 {
		if r.HoldsAt(version) {
			add(r)
		}
		return all
	}
	add(r)
	for _, v := range [...]uint64{0, version} {
		if left := s.records[draftKey(caller, v)]; left != nil && left.Level > 0 && left.Version == v {
			add(left)
		}
		if version == 0 {
			break
		}
	}
	return all
}

// dueEntry returns the audit entry that is due at now; empty if none is due. There is at most one
// in auditEvery, so the audit stays readable.
func (s *Service) dueEntry(now time.Time) audit.Entry {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.begun) == 0 || now.Sub(s.noted) < auditEvery {
		return audit.Entry{}
	}
	e := audit.Entry{Action: "penalties.begun", Resource: "penalties", After: audit.Value(s.begun)}
	s.begun, s.noted = map[string]int{}, now
	return e
}

// Query selects records. A zero field selects all.
type Query struct {
	Policy string
	// Consumer is a keyed hash; Keys are keys of callers, and the record must have one of them.
	Consumer string
	Keys     []keyhash.Key
	// Version selects the records that nodes of a version obey.
	Version uint64
	// Shadow selects records in shadow, or not in shadow; nil selects both.
	Shadow *bool
	// Before is a revision; only records that changed earlier are selected.
	Before uint64
	// Ended also selects records whose penalty has ended, and whose level is not forgotten.
	Ended bool
}

func (q *Query) wants(r *Record, now time.Time) bool {
	return r.Level > 0 && (q.Ended || r.InForce(now)) && now.UnixMilli() < r.Forgotten &&
		(q.Policy == "" || q.Policy == r.Policy) && (q.Consumer == "" || q.Consumer == r.Consumer) &&
		(q.Keys == nil || slices.Contains(q.Keys, r.Caller())) && (q.Shadow == nil || *q.Shadow == r.Shadow) &&
		(q.Before == 0 || r.Revision < q.Before) && (q.Version == 0 || r.HoldsAt(q.Version))
}

// List returns at most limit records, the latest changes first, and the number of all selected
// records.
func (s *Service) List(q Query, limit int) (page []Record, all int) {
	now := s.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := len(s.order) - 1; i >= 0; i-- {
		p := s.order[i]
		if r := s.records[p.key]; r != nil && r.Revision == p.revision && q.wants(r, now) {
			all++
			if len(page) < limit {
				page = append(page, *r)
			}
		}
	}
	return page, all
}

// Pardon pardons the callers that a query selects, also if their penalty has ended, and returns
// their number. A query that selects all pardons all records in one step. Nodes get the change at
// once.
func (s *Service) Pardon(ctx context.Context, q Query, entry audit.Entry) (pardoned int, err error) {
	for range 2 { // The first call may promote penalties of a rollout, and the second reads them.
		if err := s.Refresh(ctx); err != nil {
			return 0, err
		}
	}
	q.Ended = true
	list, count := s.List(q, math.MaxInt)
	entry.After = audit.Value(map[string]int{"pardoned": count})
	// Pardon all callers in one step.
	if q.All() {
		if err := s.kept.Clear(ctx, entry); err != nil {
			return 0, err
		}
		return count, s.Refresh(ctx)
	}
	// Pardon the selected callers, page by page.
	var keys []keyhash.Key
	for i := range list {
		keys = append(keys, list[i].Key)
	}
	for chunk := range slices.Chunk(keys, pageSize) {
		n, err := s.kept.Pardon(ctx, chunk, entry)
		pardoned += n
		if err != nil {
			return pardoned, err
		}
		entry = audit.Entry{} // One entry is enough.
	}
	return pardoned, s.Refresh(ctx)
}

// All reports whether the query selects all records.
func (q *Query) All() bool {
	return q.Policy == "" && q.Consumer == "" && q.Keys == nil && q.Shadow == nil && q.Before == 0 && q.Version == 0
}

// held returns the record of a caller that all nodes obey, zero if there is none, and the head of
// the changes. The gRPC services use the current version, which is in force for all nodes.
func (s *Service) held(key keyhash.Key) (Record, docs.Head) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r := s.records[key]; r != nil {
		return *r, s.state
	}
	return Record{}, s.state
}

// heldOf returns the records of keys and the head of the changes. loaded is false until the store
// has been read.
func (s *Service) heldOf(keys []keyhash.Key) (byKey map[keyhash.Key]Record, head docs.Head, loaded bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	byKey = make(map[keyhash.Key]Record, len(keys))
	for _, key := range keys {
		if r := s.records[key]; r != nil {
			byKey[key] = *r
		}
	}
	return byKey, s.state, s.loaded
}

// InForce reports whether a caller is under a penalty.
func (s *Service) InForce(key keyhash.Key) bool {
	r, _ := s.held(key)
	return r.InForce(s.Now())
}

// Loaded reports whether the store has been read.
func (s *Service) Loaded() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.loaded
}

// Counts returns the number of penalties in force, enforced and in shadow.
func (s *Service) Counts() (enforced, shadow int) {
	now := s.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.records {
		switch {
		case !r.InForce(now):
		case r.Shadow:
			shadow++
		default:
			enforced++
		}
	}
	return enforced, shadow
}
