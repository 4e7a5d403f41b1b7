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
	// it.
	patience = 300 * time.Millisecond
	// maxEntries bounds the audit entries of changes that could not be stored; the latest are kept.
	maxEntries = 100
	// resource is the name in the audit.
	resource = "enforcement"
)

// Service is what is in force on this replica. Make one with New, and call Follow all the time. It
// is safe for concurrent use.
type Service struct {
	store Store
	now   func() time.Time
	log   *slog.Logger

	// changing is held during requests to the store.
	changing sync.Mutex
	// lost is called when the store has lost something, or had no room for it. Changing guards it.
	lost func()
	// unsaid: the store was given back orders or bans it had lost, and the answer did not come.
	// Changing guards it.
	unsaid bool
	// failing: the store could not be followed the last time. Changing guards it.
	failing bool

	mu sync.Mutex
	// loaded: the store has been read since the start. unsaved: held has not been stored; base is
	// the revision that it was made on.
	loaded, unsaved bool
	held            Document
	// freeing is how many buckets are being changed that Free has not named yet.
	freeing   int
	base      uint64
	entries   []audit.Entry // of what is unsaved
	message   []byte
	answering breaker.Answering
	changed   chan struct{} // closed when held changes
}

// New makes a Service over a store; now is its clock.
func New(store Store, now func() time.Time, log *slog.Logger) *Service {
	return &Service{store: store, now: now, log: log, lost: func() {}, changed: make(chan struct{})}
}

// OnLost sets what is called each time that the store has lost orders or bans, or has no room for
// bans.
func (s *Service) OnLost(lost func()) {
	s.changing.Lock()
	defer s.changing.Unlock()
	s.lost = lost
}

// Follow exchanges changes with the store, unless this replica holds the document of the
// revision that a poll has read, nil if the poll could not read it. It logs once when the store
// begins to fail and when it answers again.
func (s *Service) Follow(ctx context.Context, revision *uint64) error {
	s.changing.Lock()
	defer s.changing.Unlock()
	if revision != nil && s.current(*revision) {
		s.noteStore(ctx, nil)
		return nil
	}
	timed, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	err := s.meet(timed)
	s.noteStore(ctx, err)
	return err
}

// Unreached notes that a poll has not reached the store.
func (s *Service) Unreached(ctx context.Context, err error) {
	s.changing.Lock()
	defer s.changing.Unlock()
	s.noteStore(ctx, err)
}

// current reports whether this replica holds a revision, and owes the store nothing. The caller
// holds changing.
func (s *Service) current(revision uint64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.loaded && !s.unsaved && !s.unsaid && revision == s.held.Revision
}

// noteStore notes whether the store could be followed. The caller holds changing.
func (s *Service) noteStore(ctx context.Context, err error) {
	s.mu.Lock()
	s.answering.Note(err, s.now())
	s.mu.Unlock()
	if ctx.Err() != nil || (err != nil) == s.failing {
		return
	}
	s.failing = err != nil
	if s.failing {
		s.log.Warn("enforcement cannot be followed; orders work and are held in memory", "error", err)
	} else {
		s.log.Info("enforcement can be followed again")
	}
}

// refresh exchanges changes with the store. The caller holds changing.
func (s *Service) refresh(ctx context.Context) error {
	err := s.meet(ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.answering.Note(err, s.now())
	return err
}

func (s *Service) meet(ctx context.Context) error {
	s.mu.Lock()
	held, unsaved, known := s.held, s.unsaved, uint64(0)
	if s.loaded && !unsaved && !s.unsaid {
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
	merged, dropped := join(held, stored, s.now())
	if merged.is(stored) && stored.Revision >= held.Revision && (!unsaved || stored.is(held)) {
		if s.unsaid {
			s.sayRegained(stored, 0)
		}
		return s.adopt(stored, true)
	}
	if dropped > 0 {
		s.log.Error("bans were made on several replicas while the store was away, and there are more than fit",
			"dropped", dropped, "kept", wire.MaxBans)
		s.lost()
	}
	return s.settle(ctx, held, stored, merged)
}

// settle stores what this replica has and the store does not, joined with what the store has: a
// change made while the store was away, or one that the store has lost. The entry of a change that
// is overtaken is kept all the same.
func (s *Service) settle(ctx context.Context, held, stored, merged Document) error {
	entries := s.entries
	if !s.unsaved {
		entries = []audit.Entry{{
			Action: "enforcement.restore", Resource: resource, Before: audit.Value(stored.Orders.List),
			After: audit.Value(merged.Orders.List), Reason: "the store had lost it",
		}}
	}
	if !merged.is(held) || merged.Revision <= stored.Revision {
		merged.Revision++ // Nodes have another document of this number.
	}
	merged.Revision = merged.Freed.renew(merged.Revision, held.Freed, stored.Freed)
	write := Write{Expected: stored.Revision, Document: merged, Entries: entries}
	if err := s.store.WriteEnforcement(ctx, write); err != nil {
		s.unsaid = !s.unsaved && !errors.Is(err, errs.Conflict)
		return err
	}
	switch {
	case merged.is(stored):
		s.log.Warn("what was ordered while the store was away has been overtaken by a later change, which stays",
			append(merged.facts(stored.Revision), "by", stored.Orders.By)...)
	case !s.unsaved:
		s.sayRegained(merged, stored.Revision)
	default:
		s.log.Info("what was ordered while the store was away is stored", merged.facts(stored.Revision)...)
	}
	return s.adopt(merged, true)
}

// sayRegained says that the store had lost what it has back by now.
func (s *Service) sayRegained(now Document, replaces uint64) {
	s.unsaid = false
	s.log.Warn("the store had lost orders or bans; it has back what this replica knew", now.facts(replaces)...)
	s.lost()
}

// facts are those that the log has of a document that is stored.
func (d *Document) facts(replaces uint64) []any {
	return []any{"orders", len(d.Orders.List), "bans", len(d.Bans.List), "revision", d.Revision, "replaces", replaces}
}

// adopt puts a document into force on this replica.
func (s *Service) adopt(d Document, saved bool) error {
	message, err := d.message()
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

// Held returns what is in force on this replica and whether the store has it. The error is
// ErrUnknown before the store has been reached, unless there was an order since.
func (s *Service) Held() (d Document, durable bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.loaded && !s.unsaved {
		return Document{}, false, ErrUnknown
	}
	return s.held, !s.unsaved, nil
}

// change makes a new document from the one in force. Nodes connected to this replica get it at
// once, even if it cannot be stored: then it is not durable. Edit may be called again if another
// writer was faster; change returns its errors.
func (s *Service) change(
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
		if away == nil {
			away = s.store.WriteEnforcement(timed, Write{Expected: base, Document: d, Entries: entries(entry)})
		}
		if errors.Is(away, errs.Conflict) {
			continue
		}
		if away != nil {
			s.log.Warn("the store does not take what was ordered; it is in force and held in memory until it does",
				"error", away)
			s.entries = append(s.entries[max(0, len(s.entries)+1-maxEntries):], entries(entry)...)
		}
		return d, away == nil, s.adopt(d, away == nil)
	}
}

// entries returns the entry of a change; a change whose entry is kept elsewhere has none.
func entries(e audit.Entry) []audit.Entry {
	if e.Action == "" {
		return nil
	}
	return []audit.Entry{e}
}

// Change replaces all orders.
type Change struct {
	// Expected is the revision of the orders that are replaced, 0 for none. Any replaces any
	// orders.
	Expected uint64
	Any      bool
	Orders   []Order
	// Entry names the author; what was before and comes after is filled in, and without a Reason
	// those of the orders that are new.
	Entry audit.Entry
	// DryRun stores nothing and sends nothing to nodes.
	DryRun bool
}

// Put makes a change and returns what is in force then, and whether it is stored. An order that
// means the same as before keeps its author and time. The error is errs.Conflict, or ErrUnknown
// where only a change of Any could be made.
func (s *Service) Put(ctx context.Context, c Change) (Orders, bool, error) {
	d, durable, err := s.change(ctx, c.DryRun, func(d *Document, known bool, stamp Stamp) (audit.Entry, error) {
		switch {
		case !known && !c.Any:
			return audit.Entry{}, ErrUnknown
		case !c.Any && c.Expected != d.Orders.Revision:
			return audit.Entry{}, errs.Conflict
		}
		before := d.Orders.List
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
		d.Orders.note(before, c.Any)
		entry := c.Entry
		entry.Before, entry.After = audit.Value(before), audit.Value(d.Orders.List)
		if entry.Reason == "" {
			entry.Reason = strings.Join(slices.Compact(reasons), "; ")
		}
		return entry, nil
	})
	return d.Orders, durable, err
}

// After returns the message for a node that has a revision, false if there is nothing new for it,
// and a channel that is closed when there may be. A node may be ahead because another replica sent
// it orders; it is overruled only after it has waited. One that is far behind hears of the buckets
// that were changed in several messages, each of a revision on the way.
func (s *Service) After(revision uint64, waited bool) (message []byte, news bool, changed <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if upTo, list := s.held.page(revision); upTo > 0 {
		if message, err := s.held.messageOf(upTo, list); err == nil {
			return message, true, s.changed
		}
	}
	if revision > s.held.Revision {
		return s.message, waited && s.answering.Settled(s.now()), s.changed
	}
	return s.message, revision < s.held.Revision, s.changed
}

// Revision is that of the orders and bans that this replica holds; 0 for none.
func (s *Service) Revision() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.held.Revision
}

// Counts returns how many orders of each state and how many bans are in force, and whether the
// store has them.
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
