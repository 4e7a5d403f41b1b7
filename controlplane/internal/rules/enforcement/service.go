package enforcement

import (
	"context"
	"crypto/rand"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/weir-proxy/weir/controlplane/internal/ground/audit"
	"github.com/weir-proxy/weir/controlplane/internal/ground/breaker"
	"github.com/weir-proxy/weir/controlplane/internal/ground/errs"
	"github.com/weir-proxy/weir/shared/wire"
)

const (
	// patience bounds the wait of a change or a read for the store: a kill switch must work without
	// the store.
	patience = 300 * time.Millisecond
	// maxEntries bounds the audit entries of changes that are not stored yet; the latest are kept.
	maxEntries = 100
	// resource is the name of enforcement in the audit.
	resource = "enforcement"
)

// Service manages enforcement on this replica. Make a Service with New, and call Follow all the
// time. It is safe for concurrent use.
type Service struct {
	store Store
	now   func() time.Time
	log   *slog.Logger

	// changing is held during calls to the store.
	changing sync.Mutex
	// lost is called when the store has lost something, or has no room for it. The lock changing
	// guards it.
	lost func()
	// restoreUnlogged is true if lost orders or bans were given back to the store and no answer
	// came: perhaps the store has them, and the log does not say so yet. The lock changing guards
	// it.
	restoreUnlogged bool
	// failing is true if the last exchange with the store failed. The lock changing guards it.
	failing bool

	mu sync.Mutex
	// loaded is true once the store has been read. unsaved is true if held is not stored; base is
	// the revision on which it was made.
	loaded, unsaved bool
	held            Document
	// freeing is the number of buckets that are being changed and that Free has not named yet.
	freeing   int
	base      uint64
	entries   []audit.Entry // audit entries of unsaved changes
	message   []byte
	answering breaker.Answering
	changed   chan struct{} // closed when held changes
}

// New makes a Service over a store; now is its clock.
func New(store Store, now func() time.Time, log *slog.Logger) *Service {
	return &Service{store: store, now: now, log: log, lost: func() {}, changed: make(chan struct{})}
}

// OnLost sets a function that is called each time the store has lost orders or bans, or has no room
// for bans.
func (s *Service) OnLost(lost func()) {
	s.changing.Lock()
	defer s.changing.Unlock()
	s.lost = lost
}

// Follow exchanges changes with the store, unless this replica already has the revision that a poll
// has read. revision is nil if the poll could not read it. Follow logs once when the store begins
// to fail, and once when it answers again.
func (s *Service) Follow(ctx context.Context, revision *uint64) error {
	s.changing.Lock()
	defer s.changing.Unlock()
	if revision != nil && s.current(*revision) {
		s.noteStore(ctx, nil)
		return nil
	}
	timed, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	err := s.exchange(timed)
	s.noteStore(ctx, err)
	return err
}

// Unreached records that a poll has not reached the store.
func (s *Service) Unreached(ctx context.Context, err error) {
	s.changing.Lock()
	defer s.changing.Unlock()
	s.noteStore(ctx, err)
}

// current reports whether this replica has a revision and no change that the store lacks. The
// caller holds changing.
func (s *Service) current(revision uint64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.loaded && !s.unsaved && !s.restoreUnlogged && revision == s.held.Revision
}

// noteStore records whether the exchange with the store succeeded. The caller holds changing.
func (s *Service) noteStore(ctx context.Context, err error) {
	s.mu.Lock()
	s.answering.Note(err, s.now())
	s.mu.Unlock()
	if ctx.Err() != nil || (err != nil) == s.failing {
		return
	}
	s.failing = err != nil
	if s.failing {
		s.log.Warn("cannot follow the orders and bans in the store; new orders work and are held in memory",
			"error", err)
	} else {
		s.log.Info("the orders and bans in the store can be followed again")
	}
}

// refresh exchanges changes with the store. The caller holds changing.
func (s *Service) refresh(ctx context.Context) error {
	err := s.exchange(ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.answering.Note(err, s.now())
	return err
}

// exchange reads the store's document, and joins it with the document of this replica.
func (s *Service) exchange(ctx context.Context) error {
	// Read the document, unless its revision is known.
	s.mu.Lock()
	held, unsaved, known := s.held, s.unsaved, uint64(0)
	if s.loaded && !unsaved && !s.restoreUnlogged {
		known = held.Revision
	}
	s.mu.Unlock()
	stored, err := s.store.Enforcement(ctx, known)
	if err != nil {
		return err
	}
	if s.current(stored.Revision) {
		return nil
	}
	// If the store has all changes, use its document.
	merged, dropped := joinDocuments(held, stored, s.now())
	if merged.is(stored) && stored.Revision >= held.Revision && (!unsaved || stored.is(held)) {
		if s.restoreUnlogged {
			s.logRestore(stored, 0)
		}
		return s.putInForce(stored, true)
	}
	// Otherwise store the joined document.
	if dropped > 0 {
		s.log.Error("several replicas made bans while the store was away, and there are more than fit",
			"dropped", dropped, "kept", wire.MaxBans)
		s.lost()
	}
	return s.storeJoined(ctx, held, stored, merged)
}

// storeJoined stores the joined document. The store lacks changes of this replica, because they
// were made while the store was away, or because the store has lost them. If the store has later
// changes that replace them, storeJoined still stores their audit entries.
func (s *Service) storeJoined(ctx context.Context, held, stored, merged Document) error {
	entries := s.entries
	if !s.unsaved {
		entries = []audit.Entry{{
			Action: "enforcement.restore", Resource: resource, Before: audit.Value(stored.Orders.List),
			After: audit.Value(merged.Orders.List), Reason: "the store had lost it",
		}}
	}
	if !merged.is(held) || merged.Revision <= stored.Revision {
		merged.Revision++ // Nodes may have another document with this number.
	}
	// Changed buckets that a node may have skipped get new revisions, too.
	merged.Revision = merged.Freed.renewRevisions(merged.Revision, held.Freed, stored.Freed)
	write := Write{Expected: stored.Revision, Document: merged, Entries: entries}
	if err := s.store.WriteEnforcement(ctx, write); err != nil {
		// Perhaps the store has taken the document, and only its answer is lost. Then the next
		// exchange logs the restore.
		s.restoreUnlogged = !s.unsaved && !errors.Is(err, errs.Conflict)
		return err
	}
	// Log the result.
	switch {
	case merged.is(stored):
		s.log.Warn("a later change has replaced the orders made while the store was away; the later change stays",
			append(merged.logFacts(stored.Revision), "by", stored.Orders.By)...)
	case !s.unsaved:
		s.logRestore(merged, stored.Revision)
	default:
		s.log.Info("the orders made while the store was away are stored", merged.logFacts(stored.Revision)...)
	}
	return s.putInForce(merged, true)
}

// logRestore logs that the store has its lost changes back, and calls lost.
func (s *Service) logRestore(now Document, replaces uint64) {
	s.restoreUnlogged = false
	s.log.Warn("the store had lost orders or bans; this replica has given back the orders and bans that it knew",
		now.logFacts(replaces)...)
	s.lost()
}

// logFacts returns the log's attributes of a stored document.
func (d *Document) logFacts(replaces uint64) []any {
	return []any{"orders", len(d.Orders.List), "bans", len(d.Bans.List), "revision", d.Revision, "replaces", replaces}
}

// putInForce puts a document into force on this replica.
func (s *Service) putInForce(d Document, saved bool) error {
	message, err := d.nodeMessage()
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if saved {
		s.loaded = true
		s.base = d.Revision
		s.entries = nil
	}
	s.unsaved = !saved
	s.held, s.message = d, message
	close(s.changed)
	s.changed = make(chan struct{})
	return nil
}

// Held returns the document in force on this replica, and whether the store has it. The error is
// ErrUnknown if this replica has not reached the store yet and has no unsaved change.
func (s *Service) Held() (d Document, durable bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.loaded && !s.unsaved {
		return Document{}, false, ErrUnknown
	}
	return s.held, !s.unsaved, nil
}

// changeDocument makes a new document from the document in force. Nodes of this replica get it at
// once, even if it cannot be stored. It reports whether the store has the document. It calls edit
// again if another writer has changed the store meanwhile, and returns the errors of edit.
func (s *Service) changeDocument(
	ctx context.Context, dryRun bool, edit func(d *Document, known bool, stamp Stamp) (audit.Entry, error),
) (Document, bool, error) {
	s.changing.Lock()
	defer s.changing.Unlock()
	timed, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		away := s.refresh(timed)
		if errors.Is(away, errs.Conflict) {
			continue
		}
		// Make the new document.
		d, _, err := s.Held()
		known := err == nil
		base := s.base
		stamp := Stamp{ID: rand.Text(), Time: s.now().UTC(), Revision: max(d.Revision+1, uint64(s.now().UnixMilli()))}
		d.Orders.List = slices.Clone(d.Orders.List)
		d.Bans.List, d.Bans.Lifted = slices.Clone(d.Bans.List), slices.Clone(d.Bans.Lifted)
		d.Freed.List = slices.Clone(d.Freed.List)
		entry, err := edit(&d, known, stamp)
		if err != nil || dryRun {
			return d, away == nil, err
		}
		d.Revision = stamp.Revision
		// Store it. If the store is away, put it into force all the same.
		if away == nil {
			away = s.store.WriteEnforcement(timed, Write{Expected: base, Document: d, Entries: entriesOf(entry)})
		}
		if errors.Is(away, errs.Conflict) {
			continue
		}
		if away != nil {
			s.log.Warn("cannot store the orders; they are in force, and held in memory until the store takes them",
				"error", away)
			s.entries = append(s.entries[max(0, len(s.entries)+1-maxEntries):], entriesOf(entry)...)
		}
		return d, away == nil, s.putInForce(d, away == nil)
	}
}

// entriesOf returns the audit entry of a change; a change whose entry is stored elsewhere has none.
func entriesOf(e audit.Entry) []audit.Entry {
	if e.Action == "" {
		return nil
	}
	return []audit.Entry{e}
}

// Change replaces all orders.
type Change struct {
	// Expected is the revision of the replaced orders, 0 for none. Any replaces any orders.
	Expected uint64
	Any      bool
	Orders   []Order
	// Entry names the author. Put adds the orders before and after, and, if Reason is empty, the
	// reasons of the new orders.
	Entry audit.Entry
	// DryRun stores nothing and sends nothing to nodes.
	DryRun bool
}

// Put makes a change. It returns the orders in force afterwards, and whether they are stored. An
// order with the same meaning as before keeps its author and time. The error is errs.Conflict, or
// ErrUnknown if only a change with Any is possible.
func (s *Service) Put(ctx context.Context, c Change) (Orders, bool, error) {
	d, durable, err := s.changeDocument(ctx, c.DryRun, func(d *Document, known bool, stamp Stamp) (audit.Entry, error) {
		switch {
		case !known && !c.Any:
			return audit.Entry{}, ErrUnknown
		case !c.Any && c.Expected != d.Orders.Revision:
			return audit.Entry{}, errs.Conflict
		}
		before := d.Orders.List
		// Keep author and time of unchanged orders.
		stamp.By = c.Entry.By
		d.Orders = Orders{Stamp: stamp, List: slices.Clone(c.Orders), Changed: slices.Clone(d.Orders.Changed),
			Swept: d.Orders.Swept}
		var reasons []string
		for i := range d.Orders.List {
			o := &d.Orders.List[i]
			o.Since, o.By = stamp.Time, stamp.By
			if at := slices.IndexFunc(before, o.Same); at >= 0 {
				*o = before[at]
			} else {
				reasons = append(reasons, o.Reason)
			}
		}
		d.Orders.noteChanges(before, c.Any)
		// Complete the audit entry.
		entry := c.Entry
		entry.Before, entry.After = audit.Value(before), audit.Value(d.Orders.List)
		if entry.Reason == "" {
			entry.Reason = strings.Join(slices.Compact(reasons), "; ")
		}
		return entry, nil
	})
	return d.Orders, durable, err
}

// After returns the message for a node at a revision, and a channel that is closed when there may
// be a newer message. news is false if there is nothing new. A node may be ahead because another
// replica sent it orders; only a node that has waited is corrected. A node that is far behind
// receives the changed buckets in several messages with increasing revisions.
func (s *Service) After(revision uint64, waited bool) (message []byte, news bool, changed <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if upTo, list := s.held.nextPage(revision); upTo > 0 {
		if message, err := s.held.messageOf(upTo, list); err == nil {
			return message, true, s.changed
		}
	}
	if revision > s.held.Revision {
		return s.message, waited && s.answering.Settled(s.now()), s.changed
	}
	return s.message, revision < s.held.Revision, s.changed
}

// Revision returns the revision of this replica's orders and bans; 0 for none.
func (s *Service) Revision() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.held.Revision
}

// Counts returns the number of orders in force, by state, and of bans, and whether the store has
// them.
func (s *Service) Counts() (orders map[State]int, bans int, durable bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	orders = map[State]int{Enforce: 0, Shadow: 0, Off: 0}
	for _, o := range s.held.Orders.List {
		if o.InForce(now) {
			orders[o.State]++
		}
	}
	for _, b := range s.held.Bans.List {
		if inForce(b.Expires, now) {
			bans++
		}
	}
	return orders, bans, !s.unsaved
}
