// Package consumers keeps the records of consumers: assigned tier, own limits, ban, bypass. A
// consumer is identified only by its keyed hash.
package consumers

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/weir-proxy/weir/controlplane/internal/ground/audit"
	"github.com/weir-proxy/weir/controlplane/internal/ground/breaker"
	"github.com/weir-proxy/weir/controlplane/internal/ground/docs"
	"github.com/weir-proxy/weir/controlplane/internal/ground/errs"
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/wire"
)

// maxBans is the number of bans that a replica remembers, to give them back to a store that has
// lost them.
const maxBans = 32_768

// MaxBatch is the maximum number of consumers in one write.
const MaxBatch = 1000

// Reasons for which a store or the service refuses a change. Any other error means that the store
// did not answer.
var (
	// ErrNotFound means that the consumer has no record.
	ErrNotFound = errs.New(errs.NotFound, "nothing is assigned to this consumer",
		"nothing is assigned to this consumer: it has the tier that its requests say, or the default tier")
	// ErrToken means that the page token was not made by this store.
	ErrToken = docs.ErrCursor
)

// Write is a change of one consumer.
type Write struct {
	Key keyhash.Key
	// Expected is the revision of the replaced record, 0 for none. Any replaces any record.
	Expected uint64
	Any      bool
	// Record is the new record; nil deletes the record.
	Record *Record
}

// Changes are made together or not at all. No consumer occurs twice.
type Changes struct {
	Writes []Write
	// Sets are the policy sets with the limits that the consumers' own limits replace, in the order
	// for FindPolicy; empty if no consumer has limits of its own.
	Sets []*policy.Set
	// Entry is stored with the changes. For a single change the service adds the record after it,
	// and the store the record before it.
	Entry audit.Entry
	// ExceptionsRevision is the highest known revision: a store that has lost its state continues
	// above it.
	ExceptionsRevision uint64
}

// Change is the latest change of a consumer and its present record, the zero Record for none.
type Change struct {
	Revision uint64
	Key      keyhash.Key
	Record   Record
}

// Listed is a record in a list.
type Listed struct {
	Key keyhash.Key
	Record
}

// List selects a page of records.
type List struct {
	// Token is the token of the previous page, empty for the first page.
	Token string
	Limit int
	// Banned selects records with a ban, which may have ended.
	Banned bool
}

// State is a position in the sequence of changes.
type State struct {
	// Revision is the revision of the last change, 0 before the first. It grows with each change,
	// and also if the store loses its state, since it is at least the time in milliseconds.
	Revision uint64
	// ExceptionsRevision counts the changes of consumers that have more than a tier.
	ExceptionsRevision uint64
	// Special is true if some consumers have more than a tier.
	Special bool
}

// Log has the latest changes as of State, at most KeptChanges, the earliest first.
type Log struct {
	State
	// Floor is the revision since which Changes is complete. Whole is true if it has all changes
	// ever made.
	Floor   uint64
	Whole   bool
	Changes []Change
}

// Store keeps records. Methods return ErrNotFound and errs.Conflict unchanged; any other error
// means that the store did not answer.
type Store interface {
	// Consumers returns the records of keys, the zero Record for an unknown key, and the Revision
	// and ExceptionsRevision at the same moment.
	Consumers(ctx context.Context, keys []keyhash.Key) ([]Record, State, error)
	// WriteConsumers makes one or more changes, stores their audit entry, and returns their
	// revision. The error is errs.Conflict, or ErrNotFound if there is no record to delete.
	WriteConsumers(ctx context.Context, c Changes) (uint64, error)
	// ListConsumers returns about limit records in no particular order, and the token of the next
	// page, empty after the last. A record that exists all the time is listed at least once.
	ListConsumers(ctx context.Context, list List) ([]Listed, string, error)
	// BannedConsumers returns at most limit records with a ban, which may have ended: the records
	// whose bans end last.
	BannedConsumers(ctx context.Context, limit int) ([]Listed, error)
	// ConsumerLog returns the latest changes after a revision.
	ConsumerLog(ctx context.Context, after uint64) (Log, error)
}

// Service answers questions about consumers and sends their changes to nodes. Make a Service with
// New. It is safe for concurrent use.
type Service struct {
	store Store
	now   func() time.Time

	refreshing sync.Mutex

	mu      sync.Mutex
	loaded  bool
	log     Log
	changed chan struct{} // closed when log changes
	// bans are records with a ban, at most maxBans, to give back to a store that has lost them. A
	// node that missed changes gets the bans that end last, at most wire.MaxConsumers.
	bans map[keyhash.Key]Record
	// front has the keys of the bans that end last; nil until a node needs them.
	front []keyhash.Key
	// bansWhole is true if bans has all bans.
	bansWhole bool
	// owed are acknowledged changes that the store may lack. loss describes the loss; nil if there
	// is none. The lock refreshing guards both.
	owed []Change
	loss *loss
	// remembered are records from the store; later changes are applied to them.
	remembered map[keyhash.Key]Record
	// gone are deleted consumers, at most KeptChanges, with the revisions of their deletion: the
	// log of a store that was emptied does not list these changes.
	gone map[keyhash.Key]uint64
	// since is the revision at which the store got its losses back: a node with an earlier revision
	// may have outdated records.
	since uint64
	// examined is the time when the store was last checked for losses.
	examined  time.Time
	answering breaker.Answering

	logger *slog.Logger
	lost   func()
}

// Config configures a Service. All fields are required unless they say otherwise.
type Config struct {
	Store Store
	// Now returns the time at which a record is stored, and at which it ends.
	Now func() time.Time
	// Log receives warnings that the store has lost records; nil discards them.
	Log *slog.Logger
	// Lost, if not nil, is called after each such loss.
	Lost func()
}

// New makes a Service.
func New(c Config) *Service {
	s := &Service{
		store: c.Store, now: c.Now, logger: c.Log, lost: c.Lost,
		changed: make(chan struct{}), bans: map[keyhash.Key]Record{}, remembered: map[keyhash.Key]Record{},
		gone: map[keyhash.Key]uint64{},
	}
	if s.logger == nil {
		s.logger = slog.New(slog.DiscardHandler)
	}
	if s.lost == nil {
		s.lost = func() {}
	}
	return s
}

// Get returns the record in force of a consumer. The error is ErrNotFound, or the error of the
// store.
func (s *Service) Get(ctx context.Context, key keyhash.Key) (Record, error) {
	records, _, err := s.store.Consumers(ctx, []keyhash.Key{key})
	if err != nil {
		return Record{}, err
	}
	if records[0].Revision == 0 {
		return Record{}, ErrNotFound
	}
	return records[0].At(s.now()), nil
}

// GetAll returns the records in force of consumers, the zero Record for an unknown consumer.
func (s *Service) GetAll(ctx context.Context, keys []keyhash.Key) ([]Record, error) {
	all := make([]Record, 0, len(keys))
	for some := range slices.Chunk(keys, wire.MaxQuestions) {
		records, _, err := s.store.Consumers(ctx, some)
		if err != nil {
			return nil, err
		}
		for _, r := range records {
			all = append(all, r.At(s.now()))
		}
	}
	return all, nil
}

// maxListed bounds the number of records read for one page.
const maxListed = 5000

// List returns a page of the records in force for which want returns true. It reads a bounded
// number of records, so a page may be short or empty even if more pages follow.
func (s *Service) List(ctx context.Context, list List, want func(Record) bool) (page []Listed, next string, err error) {
	for read := 0; read < maxListed; {
		some, token, err := s.store.ListConsumers(ctx, list)
		if err != nil {
			return nil, "", err
		}
		read += max(len(some), list.Limit)
		for _, one := range some {
			one.Record = one.At(s.now())
			if want(one.Record) && (!list.Banned || one.Banned != nil) {
				page = append(page, one)
			}
		}
		next, list.Token = token, token
		if next == "" || len(page) >= list.Limit {
			break
		}
	}
	return page, next, nil
}

// Write makes changes at the present time and returns their revision. Nodes that are connected to
// this replica get them at once.
func (s *Service) Write(ctx context.Context, c Changes) (uint64, error) {
	if err := s.inheritBuckets(ctx, c); err != nil {
		return 0, err
	}
	now := s.now().UTC().Truncate(time.Millisecond)
	for i := range c.Writes {
		if c.Writes[i].Record != nil {
			c.Writes[i].Record.Updated = now
		}
	}
	if len(c.Writes) == 1 && c.Writes[0].Record != nil {
		c.Entry.After = audit.Value(c.Writes[0].Record)
	}
	c.ExceptionsRevision = s.ExceptionsRevision()
	revision, err := s.store.WriteConsumers(ctx, c)
	if err != nil {
		return 0, err
	}
	// The changes are stored: if they cannot be read now, the next Refresh reads them.
	_ = s.Refresh(ctx)
	s.noteWritten(revision, c.Writes)
	return revision, nil
}

// inheritBuckets gives the own limits of consumers the buckets of their earlier limits.
func (s *Service) inheritBuckets(ctx context.Context, c Changes) error {
	var own []Write
	for _, w := range c.Writes {
		if w.Record != nil && len(w.Record.Overrides) > 0 && len(c.Sets) > 0 {
			own = append(own, w)
		}
	}
	for some := range slices.Chunk(own, wire.MaxQuestions) {
		keys := make([]keyhash.Key, len(some))
		for i := range some {
			keys[i] = some[i].Key
		}
		records, _, err := s.store.Consumers(ctx, keys)
		if err != nil {
			return err
		}
		for i := range some {
			some[i].Record.Inherit(c.Sets, &records[i])
		}
	}
	return nil
}

// Ask answers a question of a node.
func (s *Service) Ask(ctx context.Context, keys []keyhash.Key) (wire.Consumers, error) {
	records, state, err := s.store.Consumers(ctx, keys)
	s.mu.Lock()
	m := wire.Consumers{
		Revision: state.Revision, ExceptionsRevision: s.log.ExceptionsRevision,
		HasExceptions: s.log.Special,
		Complete:      true,
	}
	s.mu.Unlock()
	for i := range records {
		m.Items = append(m.Items, s.messageOf(keys[i], &records[i]))
	}
	return m, err
}

// messageOf returns a consumer's record in the form for nodes.
func (s *Service) messageOf(key keyhash.Key, r *Record) wire.Consumer {
	return wire.Consumer{Key: key, Tier: []byte(r.Tier), Exceptions: wire.AppendExceptions(nil, r.Special(s.now()))}
}
