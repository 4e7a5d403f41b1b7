// Package consumers keeps what the control plane knows of consumers: the tier that each has been assigned. A consumer is known by
// its keyed hash alone.
package consumers

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/weir-proxy/weir/controlplane/internal/audit"
	"github.com/weir-proxy/weir/shared/wire"
)

// KeptChanges is how many of the latest changes a store tells of. A node that missed more asks again about everyone it knows.
const KeptChanges = 1000

// The reasons why a store or the service says no. Any other error means that the store could not be asked.
var (
	// ErrNotFound: nothing is known of the consumer.
	ErrNotFound = errors.New("nothing is assigned to this consumer")
	// ErrConflict: what is known of the consumer is not what the caller expected.
	ErrConflict = errors.New("the consumer has been changed by someone else")
	// ErrToken: a page token is none that a store has made.
	ErrToken = errors.New("the page token is none of this store's")
)

// Key is a consumer's match.ConsumerKey.
type Key = [16]byte

// Record is what is known of one consumer.
type Record struct {
	Tier string `json:"tier"`
	// Updated is when it was put, by the clock of the replica that took it; By is the name of the token that put it.
	Updated time.Time `json:"updated"`
	By      string    `json:"by"`
	// Revision is that of the change that made the record.
	Revision uint64 `json:"-"`
}

// Write is a change of one consumer.
type Write struct {
	Key Key
	// Expected is the revision of the record that is replaced, 0 for none; Any replaces whatever there is.
	Expected uint64
	Any      bool
	// Record replaces what there is; nil forgets the consumer.
	Record *Record
	// Entry is kept with the change. The service fills in what comes after, the store what was before.
	Entry audit.Entry
}

// Change says that a consumer has changed, and its tier now, empty for none.
type Change struct {
	Revision uint64
	Key      Key
	Tier     string
}

// Listed is a record in a list.
type Listed struct {
	Key Key
	Record
}

// Log is the latest changes as of Revision, at most KeptChanges, the earliest first.
type Log struct {
	// Revision is that of the last change, 0 if there never was one. It grows with each change, and also over a loss of the
	// store's state, since it is at least the time in milliseconds.
	Revision uint64
	// Floor is the revision after which no change is missing from Changes; Whole: none is missing at all.
	Floor   uint64
	Whole   bool
	Changes []Change
}

// Store keeps records. Methods return ErrNotFound and ErrConflict as such; any other error means that the store could not be
// asked.
type Store interface {
	// Consumers returns the records of keys, the zero Record where there is none, and a revision that they are no older than.
	Consumers(ctx context.Context, keys []Key) ([]Record, uint64, error)
	// WriteConsumer makes a change, keeps its entry, and returns its revision. ErrConflict, or ErrNotFound if there is nothing to
	// forget.
	WriteConsumer(ctx context.Context, w Write) (uint64, error)
	// ConsumerRevision is the revision of the last change, 0 if there never was one.
	ConsumerRevision(ctx context.Context) (uint64, error)
	// ListConsumers returns about limit records, in no order that means anything, and a token for the following page, empty after
	// the last. A record that is there all the time is listed once at least.
	ListConsumers(ctx context.Context, token string, limit int) ([]Listed, string, error)
	// ConsumerLog returns the latest changes.
	ConsumerLog(ctx context.Context) (Log, error)
}

// Service answers what is known of consumers and tells nodes what changes. Make one with New. It is safe for concurrent use.
type Service struct {
	store Store
	now   func() time.Time

	refreshing sync.Mutex

	mu      sync.Mutex
	loaded  bool
	log     Log
	changed chan struct{} // closed when log changes
}

// New makes a Service over store; now tells the time at which a record is put.
func New(store Store, now func() time.Time) *Service {
	return &Service{store: store, now: now, changed: make(chan struct{})}
}

// Get returns what is known of a consumer. ErrNotFound, or the store's error.
func (s *Service) Get(ctx context.Context, key Key) (Record, error) {
	records, _, err := s.store.Consumers(ctx, []Key{key})
	if err != nil {
		return Record{}, err
	}
	if records[0].Revision == 0 {
		return Record{}, ErrNotFound
	}
	return records[0], nil
}

// List returns a page of all records; see Store.
func (s *Service) List(ctx context.Context, token string, limit int) ([]Listed, string, error) {
	return s.store.ListConsumers(ctx, token, limit)
}

// Write makes a change, with the time put in, and returns the record as it is stored. Nodes on this replica hear of it at once.
func (s *Service) Write(ctx context.Context, w Write) (Record, error) {
	var r Record
	if w.Record != nil {
		r = *w.Record
		r.Updated = s.now().UTC()
		w.Record, w.Entry.After = &r, audit.Value(r)
	}
	revision, err := s.store.WriteConsumer(ctx, w)
	if err != nil {
		return Record{}, err
	}
	r.Revision = revision
	// The change is stored: if it cannot be read back now, the next Refresh brings it.
	_ = s.Refresh(ctx)
	return r, nil
}

// Ask answers a node's question.
func (s *Service) Ask(ctx context.Context, keys []Key) (wire.Consumers, error) {
	records, revision, err := s.store.Consumers(ctx, keys)
	m := wire.Consumers{Revision: revision, Complete: true}
	for i := range records {
		m.Items = append(m.Items, wire.Consumer{Key: keys[i], Tier: []byte(records[i].Tier)})
	}
	return m, err
}

// Refresh reads the latest changes if there are new ones.
func (s *Service) Refresh(ctx context.Context) error {
	s.refreshing.Lock()
	defer s.refreshing.Unlock()
	revision, err := s.store.ConsumerRevision(ctx)
	if err != nil {
		return err
	}
	if s.holds(revision) {
		return nil
	}
	log, err := s.store.ConsumerLog(ctx)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.log, s.loaded = log, true
	close(s.changed)
	s.changed = make(chan struct{})
	return nil
}

func (s *Service) holds(revision uint64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.loaded && s.log.Revision == revision
}

// After returns what has changed since a node's revision, false if nothing has, and a channel that is closed when something does.
// It never asks the store.
func (s *Service) After(revision uint64) (m wire.Consumers, news bool, changed <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	// A node that is ahead has heard from another replica, unless the store has lost all it had.
	if !s.loaded || revision == s.log.Revision || revision > s.log.Revision && s.log.Revision > 0 {
		return m, false, s.changed
	}
	m.Revision = s.log.Revision
	if revision > s.log.Revision || revision < s.log.Floor && (revision > 0 || !s.log.Whole) {
		return m, true, s.changed
	}
	m.Complete = true
	for _, c := range s.log.Changes {
		if c.Revision > revision {
			m.Items = append(m.Items, wire.Consumer{Key: c.Key, Tier: []byte(c.Tier)})
		}
	}
	return m, true, s.changed
}
