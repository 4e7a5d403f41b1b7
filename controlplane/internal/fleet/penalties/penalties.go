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
	// pageSize is how many records are read or written at once.
	pageSize = 500
	// auditEvery is how often a replica notes at most how many penalties nodes have begun.
	auditEvery = time.Minute
	// auditedPolicies is how many policies such a note names.
	auditedPolicies = 20
	// sweepEvery is how often forgotten records are dropped from memory.
	sweepEvery = time.Minute
)

// Sets finds policy sets. *policies.Service is one.
type Sets interface {
	// At is a version of the policy set, and Active those in force.
	At(ctx context.Context, version uint64) (*policies.Compiled, error)
	Active() (policies.Active, <-chan struct{})
	// Load is a version as it is stored, or as this replica knows it if the store is away.
	Load(ctx context.Context, version uint64) (v policies.Version, away, err error)
}

// Meter counts what nodes report.
type Meter interface {
	// PenaltyBegun counts a penalty of a policy.
	PenaltyBegun(policy string, shadow bool)
	// PenaltiesFull counts penalties that found no place in the store.
	PenaltiesFull(n int)
}

// Config is what a Service stands on. Fields must be set unless they say otherwise.
type Config struct {
	Store docs.Records
	Sets  Sets
	Now   func() time.Time
	Meter Meter
	// Log gets what a store turns out to have lost.
	Log *slog.Logger
	// Lost, if not nil, is called each time.
	Lost func()
	// Random is that of Kept.
	Random func() float64
}

// Service knows all penalties. It holds a copy of the store's records, so that neither nodes nor
// lists cost a read of the store. Make one with New. It is safe for concurrent use.
type Service struct {
	Config
	kept Kept

	refreshing sync.Mutex

	mu      sync.Mutex
	loaded  bool
	state   docs.Head
	records map[keyhash.Key]*Record
	// order are the records by revision, rising. Those that have changed since are in it twice.
	order []place
	// drafts are the records of one version's nodes that are no pardons, by version.
	drafts  map[uint64]map[keyhash.Key]bool
	changed chan struct{} // closed when a record changes
	swept   time.Time

	// begun counts penalties by policy since the last note of them, which was at noted.
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

// Revision is that of the last change of a penalty that this replica has seen; 0 for none.
func (s *Service) Revision() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.state.Revision
}

// After returns what a node of a version of the policy set lacks that knows the changes up to a
// revision, and a channel that is closed when there is more. News: there is something.
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
			continue // It has changed since, or is a pardon that a new node need not know.
		}
		if len(m.Items)+mostItems > wire.MaxPenalties {
			m.Revision = last // The next poll brings the rest.
			break
		}
		last = p.revision
		m.Items = s.items(m.Items, r, version)
	}
	return m, true, s.changed
}

// mostItems is how many items one change makes at most.
const mostItems = 3

// items adds a change as nodes of a version hear of it. A node knows one penalty of a caller, so a
// pardon ends it, and what is left of the caller's follows. The caller holds the lock.
func (s *Service) items(all []wire.Penalty, r *Record, version uint64) []wire.Penalty {
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

// note is the audit entry that is due at now, empty if none is: at most one in auditEvery, so that
// a flood of offenders leaves the audit readable.
func (s *Service) note(now time.Time) audit.Entry {
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
	// Consumer is a keyed hash; Keys are those of callers, one of which is the record's.
	Consumer string
	Keys     []keyhash.Key
	// Version selects what nodes of a version obey.
	Version uint64
	// Shadow is whether a record is in shadow.
	Shadow *bool
	// Before is a revision; only records that changed earlier are selected.
	Before uint64
	// Ended selects also those whose penalty has ended, and whose level is not forgotten.
	Ended bool
}

func (q *Query) wants(r *Record, now time.Time) bool {
	return r.Level > 0 && (q.Ended || r.InForce(now)) && now.UnixMilli() < r.Forgotten &&
		(q.Policy == "" || q.Policy == r.Policy) && (q.Consumer == "" || q.Consumer == r.Consumer) &&
		(q.Keys == nil || slices.Contains(q.Keys, r.Caller())) && (q.Shadow == nil || *q.Shadow == r.Shadow) &&
		(q.Before == 0 || r.Revision < q.Before) && (q.Version == 0 || r.HoldsAt(q.Version))
}

// List returns at most limit records, those that changed last first, and how many there are in all.
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

// Pardon pardons those that a query selects, also if their penalty has ended, and returns how many.
// A query that selects all pardons every record at once. Nodes get it without delay.
func (s *Service) Pardon(ctx context.Context, q Query, entry audit.Entry) (pardoned int, err error) {
	for range 2 { // The first may promote penalties of a rollout, which the second reads.
		if err := s.Refresh(ctx); err != nil {
			return 0, err
		}
	}
	q.Ended = true
	list, count := s.List(q, math.MaxInt)
	entry.After = audit.Value(map[string]int{"pardoned": count})
	if q.All() {
		if err := s.kept.Clear(ctx, entry); err != nil {
			return 0, err
		}
		return count, s.Refresh(ctx)
	}
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
		entry = audit.Entry{} // One is enough.
	}
	return pardoned, s.Refresh(ctx)
}

// All reports whether the query selects all records.
func (q *Query) All() bool {
	return q.Policy == "" && q.Consumer == "" && q.Keys == nil && q.Shadow == nil && q.Before == 0 && q.Version == 0
}

// held is the record of a caller that all nodes obey, zero if there is none, and how far changes
// have come. The gRPC services go by the version in force for all.
func (s *Service) held(key keyhash.Key) (Record, docs.Head) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r := s.records[key]; r != nil {
		return *r, s.state
	}
	return Record{}, s.state
}

// heldOf returns the records of keys, and how far changes have come; false before the store was
// read.
func (s *Service) heldOf(keys []keyhash.Key) (map[keyhash.Key]Record, docs.Head, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	of := make(map[keyhash.Key]Record, len(keys))
	for _, key := range keys {
		if r := s.records[key]; r != nil {
			of[key] = *r
		}
	}
	return of, s.state, s.loaded
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

// Counts are how many penalties are in force, enforced and in shadow.
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
