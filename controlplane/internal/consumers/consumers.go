// Package consumers keeps what the control plane knows of consumers: the tier that each has been
// assigned, limits of its own, a ban, a bypass. A consumer is known by its keyed hash alone.
package consumers

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/weir-proxy/weir/controlplane/internal/audit"
	"github.com/weir-proxy/weir/controlplane/internal/breaker"
	"github.com/weir-proxy/weir/controlplane/internal/errs"
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/wire"
)

// KeptChanges is how many of the latest changes a store tells of. A node that missed more asks
// again about everyone it knows.
const KeptChanges = 1000

// MaxBatch is how many consumers may be written at once.
const MaxBatch = 1000

// The reasons why a store or the service says no. Any other error means that the store could not be
// asked.
var (
	// ErrNotFound: nothing is known of the consumer.
	ErrNotFound = errs.New(errs.NotFound, "nothing is assigned to this consumer",
		"nothing is assigned to this consumer: it has the tier that its requests say, or the default tier")
	// ErrToken: a page token is none that a store has made.
	ErrToken = errors.New("the page token is none of this store's")
)

// AwayError: the part of the store that keeps the consumers does not answer, though other parts do.
type AwayError struct {
	// For is how long it has not answered; 0 if that is not known.
	For   time.Duration
	Cause error
}

// Error names the cause.
func (e *AwayError) Error() string {
	return "what keeps the consumers does not answer: " + e.Cause.Error()
}

// Unwrap is the cause.
func (e *AwayError) Unwrap() error { return e.Cause }

// Write is a change of one consumer.
type Write struct {
	Key keyhash.Key
	// Expected is the revision of the record that is replaced, 0 for none; Any replaces whatever
	// there is.
	Expected uint64
	Any      bool
	// Record replaces what there is; nil forgets the consumer.
	Record *Record
}

// Changes are made together or not at all. No consumer is in them twice.
type Changes struct {
	Writes []Write
	// Entry is kept with the changes. For a single one the service fills in the state after, the
	// store the state before.
	Entry audit.Entry
	// Turn is one that has been seen: a store that has lost its state goes on above it.
	Turn uint64
}

// Change says that a consumer has changed, and its record now, the zero one for none.
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

// List says what to list.
type List struct {
	// Token is that of a page before, empty for the first.
	Token string
	Limit int
	// Banned lists those with a ban, which may have ended.
	Banned bool
}

// State is how far changes have come.
type State struct {
	// Revision is that of the last change, 0 if there never was one. It grows with each, and also
	// over a loss of the store's state, since it is at least the time in milliseconds.
	Revision uint64
	// Turn counts the changes of consumers with more than a tier.
	Turn uint64
	// Special: there are such consumers.
	Special bool
}

// Log is the latest changes as of State, at most KeptChanges, the earliest first.
type Log struct {
	State
	// Floor is the revision after which no change is missing from Changes; Whole: none is missing
	// at all.
	Floor   uint64
	Whole   bool
	Changes []Change
}

// Store keeps records. Methods return ErrNotFound and errs.Conflict as such; any other error means
// that the store could not be asked.
type Store interface {
	// Consumers returns the records of keys, the zero Record where there is none, and the Revision
	// and Turn of that very moment.
	Consumers(ctx context.Context, keys []keyhash.Key) ([]Record, State, error)
	// WriteConsumers makes changes, at least one, with their entry, and returns their revision.
	// errs.Conflict, or ErrNotFound if there is nothing to forget.
	WriteConsumers(ctx context.Context, c Changes) (uint64, error)
	// ConsumerRevision is the revision of the last change, 0 if there never was one.
	ConsumerRevision(ctx context.Context) (uint64, error)
	// ListConsumers returns about limit records, in no order that means anything, and a token for
	// the following page, empty after the last. A record that is there all the time is listed once
	// at least.
	ListConsumers(ctx context.Context, list List) ([]Listed, string, error)
	// BannedConsumers returns at most limit of those with a ban, which may have ended: the ones
	// whose bans end last.
	BannedConsumers(ctx context.Context, limit int) ([]Listed, error)
	// ConsumerLog returns the latest changes after a revision.
	ConsumerLog(ctx context.Context, after uint64) (Log, error)
}

// Service answers what is known of consumers and tells nodes what changes. Make one with New. It is
// safe for concurrent use.
type Service struct {
	store Store
	now   func() time.Time

	refreshing sync.Mutex

	mu      sync.Mutex
	loaded  bool
	log     Log
	changed chan struct{} // closed when log changes
	// bans are those that a node must know that has missed changes: at most wire.MaxConsumers.
	bans map[keyhash.Key]Record
	// remembered are records as they were read, of which no change since is missing.
	remembered map[keyhash.Key]Record
	// since is the revision at which the store had back what it lost: who knows less may know what
	// is no longer so.
	since     uint64
	answering breaker.Answering

	logger *slog.Logger
	lost   func()
}

// Config is what a Service stands on. Fields must be set unless they say otherwise.
type Config struct {
	Store Store
	// Now returns the time at which a record is put, and at which it ends.
	Now func() time.Time
	// Log gets what a store turns out to have lost; nil discards it.
	Log *slog.Logger
	// Lost, if not nil, is called each time.
	Lost func()
}

// New makes a Service.
func New(c Config) *Service {
	s := &Service{
		store: c.Store, now: c.Now, logger: c.Log, lost: c.Lost,
		changed: make(chan struct{}), bans: map[keyhash.Key]Record{}, remembered: map[keyhash.Key]Record{},
	}
	if s.logger == nil {
		s.logger = slog.New(slog.DiscardHandler)
	}
	if s.lost == nil {
		s.lost = func() {}
	}
	return s
}

// Get returns what is in force of a consumer. ErrNotFound, or the store's error.
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

// maxListed is how many records are read for one page of those that are wanted.
const maxListed = 5000

// List returns a page of the records that want wants, as they are in force. It reads a bounded
// number: there may be fewer than the limit, or none, and more to come.
func (s *Service) List(ctx context.Context, list List, want func(Record) bool) (page []Listed, next string, err error) {
	for read := 0; read < maxListed; {
		some, token, err := s.store.ListConsumers(ctx, list)
		if err != nil {
			return nil, "", err
		}
		read += max(len(some), list.Limit)
		for _, one := range some {
			if one.Record = one.At(s.now()); want(one.Record) && (!list.Banned || one.Banned != nil) {
				page = append(page, one)
			}
		}
		if next, list.Token = token, token; next == "" || len(page) >= list.Limit {
			break
		}
	}
	return page, next, nil
}

// Write makes changes, with the time put in, and returns their revision. Nodes on this replica hear
// of them at once.
func (s *Service) Write(ctx context.Context, c Changes) (uint64, error) {
	now := s.now().UTC().Truncate(time.Millisecond)
	for i := range c.Writes {
		if c.Writes[i].Record != nil {
			c.Writes[i].Record.Updated = now
		}
	}
	if len(c.Writes) == 1 && c.Writes[0].Record != nil {
		c.Entry.After = audit.Value(c.Writes[0].Record)
	}
	c.Turn = s.Turn()
	revision, err := s.store.WriteConsumers(ctx, c)
	if err != nil {
		return 0, err
	}
	// The changes are stored: if they cannot be read back now, the next Refresh brings them.
	_ = s.Refresh(ctx)
	return revision, nil
}

// Ask answers a node's question.
func (s *Service) Ask(ctx context.Context, keys []keyhash.Key) (wire.Consumers, error) {
	records, state, err := s.store.Consumers(ctx, keys)
	s.mu.Lock()
	m := wire.Consumers{Format: wire.ConsumersFormat, Revision: state.Revision, Turn: s.log.Turn, Special: s.log.Special, Complete: true}
	s.mu.Unlock()
	for i := range records {
		m.Items = append(m.Items, s.told(keys[i], &records[i]))
	}
	return m, err
}

// The message to nodes about a consumer.
func (s *Service) told(key keyhash.Key, r *Record) wire.Consumer {
	return wire.Consumer{Key: key, Tier: []byte(r.Tier), Special: wire.AppendSpecial(nil, r.Special(s.now()))}
}
