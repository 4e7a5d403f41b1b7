package policies

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"sync"
	"time"

	"github.com/weir-proxy/weir/controlplane/internal/audit"
	"github.com/weir-proxy/weir/controlplane/internal/policydoc"
	"github.com/weir-proxy/weir/shared/policy"
)

// remembered is how many versions are kept ready for nodes that still use an older one.
const remembered = 32

// Service answers what the policy set is. Make one with New. It is safe for concurrent use.
type Service struct {
	store Store
	now   func() time.Time

	mu       sync.Mutex
	current  *Compiled
	changed  chan struct{} // closed when current changes
	versions map[uint64]*Compiled
}

// New makes a Service over store; now tells the time at which a version is put.
func New(store Store, now func() time.Time) *Service {
	return &Service{store: store, now: now, changed: make(chan struct{}), versions: map[uint64]*Compiled{}}
}

// Current returns the newest version that this replica knows, nil if there is none yet, and a channel that is closed when it
// changes. It never asks the store.
func (s *Service) Current() (*Compiled, <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.current, s.changed
}

// Refresh makes the store's newest version the current one and returns it, nil if the store is empty. On any error the
// current version stays. If the store has lost versions that this replica still has, it gets the newest of them back.
func (s *Service) Refresh(ctx context.Context) (*Compiled, error) {
	number, err := s.store.Current(ctx)
	if err != nil {
		return nil, err
	}
	held, _ := s.Current()
	if held != nil && number < held.Version.Number {
		return s.restore(ctx, number, held)
	}
	if held != nil && number == held.Version.Number {
		return held, nil
	}
	if number == 0 {
		return nil, nil
	}
	c, err := s.At(ctx, number)
	if err != nil {
		return nil, err
	}
	return s.advance(c), nil
}

// restore puts the held version back into a store that came back with less than it had. Whoever else does the same at the
// same time wins or loses the race; either way the next Refresh finds a version.
func (s *Service) restore(ctx context.Context, number uint64, held *Compiled) (*Compiled, error) {
	e := audit.Entry{Action: "policyset.restore", Resource: "policyset", Before: told(number, ""),
		After: told(held.Version.Number, held.Version.Summary), Reason: "the store had lost it"}
	if err := s.store.Append(ctx, number, held.Version, e); err != nil && !errors.Is(err, ErrConflict) {
		return nil, err
	}
	return held, nil
}

// advance makes c current unless a newer one is already, and returns the current one.
func (s *Service) advance(c *Compiled) *Compiled {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.current != nil && s.current.Version.Number >= c.Version.Number {
		return s.current
	}
	s.current = c
	s.remember(c)
	close(s.changed)
	s.changed = make(chan struct{})
	return c
}

// At returns a version by number. ErrNotFound, ErrUnreadable, which wraps what this build has against the document, or the store's
// error.
func (s *Service) At(ctx context.Context, number uint64) (*Compiled, error) {
	s.mu.Lock()
	c := s.versions[number]
	s.mu.Unlock()
	if c != nil {
		return c, nil
	}
	v, err := s.store.Load(ctx, number)
	if err != nil {
		return nil, err
	}
	if c, err = compile(v); err != nil {
		return nil, fmt.Errorf("%w: version %d: %w", ErrUnreadable, number, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.remember(c)
	return c, nil
}

// remember keeps c in place of the oldest other version. The caller holds the lock.
func (s *Service) remember(c *Compiled) {
	s.versions[c.Version.Number] = c
	if len(s.versions) <= remembered {
		return
	}
	oldest := uint64(math.MaxUint64)
	for n := range s.versions {
		if n != c.Version.Number {
			oldest = min(oldest, n)
		}
	}
	delete(s.versions, oldest)
}

// Load returns a version as it is stored, whether or not this build understands it.
func (s *Service) Load(ctx context.Context, number uint64) (Version, error) {
	return s.store.Load(ctx, number)
}

// Newest returns the newest stored version as it was written; version 0 with EmptyDocument if there is none.
func (s *Service) Newest(ctx context.Context) (Version, error) {
	number, err := s.store.Current(ctx)
	if err != nil {
		return Version{}, err
	}
	return s.written(ctx, number)
}

func (s *Service) written(ctx context.Context, number uint64) (Version, error) {
	if number == 0 {
		return Version{Format: policydoc.YAML, Document: []byte(EmptyDocument)}, nil
	}
	if held, _ := s.Current(); held != nil && held.Version.Number == number {
		return held.Version, nil
	}
	return s.store.Load(ctx, number)
}

// List returns at most limit versions below before, newest first, without documents. before 0 starts at the newest.
func (s *Service) List(ctx context.Context, before uint64, limit int) ([]Version, error) {
	return s.store.List(ctx, before, limit)
}

// Change is a document to become the next version.
type Change struct {
	// Expected is the version that the document replaces; Any replaces whatever there is.
	Expected uint64
	Any      bool
	Document []byte
	Format   policydoc.Format
	// Edit, if not nil, makes the document out of the one that it replaces, and keeps its format. It is called again if Any
	// meets a newer one. Its errors are Put's.
	Edit func(document []byte, format policydoc.Format) ([]byte, error)
	// Entry says who makes the change, for its author and the audit; what was before and comes after is filled in.
	Entry audit.Entry
	// Reason begins the new version's summary.
	Reason string
	// DryRun checks everything and stores nothing.
	DryRun bool
}

// Outcome is what a Change did, or would do.
type Outcome struct {
	// Version is the new version's number.
	Version uint64
	// Summary is the new version's.
	Summary string
	Diff    Diff
	Set     *policy.Set
}

// Put validates a change, stores it and makes it current on this replica. Errors: *policydoc.SyntaxError, policy.Problems,
// ErrConflict, or the store's.
func (s *Service) Put(ctx context.Context, c Change) (Outcome, error) {
	for {
		out, err := s.put(ctx, c)
		if c.Any && errors.Is(err, ErrConflict) && ctx.Err() == nil {
			continue // Another change came between reading the number and storing; this one replaces that too.
		}
		return out, err
	}
}

func (s *Service) put(ctx context.Context, c Change) (Outcome, error) {
	number, err := s.store.Current(ctx)
	if err != nil {
		return Outcome{}, err
	}
	if !c.Any && number != c.Expected {
		return Outcome{}, ErrConflict
	}
	if c.Edit != nil {
		written, err := s.written(ctx, number)
		if err != nil {
			return Outcome{}, err
		}
		c.Format = written.Format
		if c.Document, err = c.Edit(written.Document, written.Format); err != nil {
			return Outcome{}, err
		}
	}
	set, err := policydoc.Load(c.Document, c.Format)
	if err != nil {
		return Outcome{}, err
	}
	before, err := s.meaning(ctx, number)
	if err != nil {
		return Outcome{}, err
	}
	out := Outcome{Version: number + 1, Diff: Compare(before, set), Set: set}
	out.Summary = c.Reason + out.Diff.String()
	if c.DryRun {
		return out, nil
	}
	digest := sha256.Sum256(c.Document)
	v := Version{
		Number: out.Version, Time: s.now().UTC(), Author: c.Entry.By, Digest: hex.EncodeToString(digest[:]),
		Summary: out.Summary, Format: c.Format, Document: c.Document,
	}
	c.Entry.Before, c.Entry.After = told(number, ""), told(v.Number, v.Summary)
	if err := s.store.Append(ctx, number, v, c.Entry); err != nil {
		return Outcome{}, err
	}
	s.advance(newCompiled(v, set))
	return out, nil
}

// told is what the audit says of a version; its document is in the history.
func told(number uint64, summary string) json.RawMessage {
	return audit.Value(struct {
		Version uint64 `json:"version"`
		Summary string `json:"summary,omitempty"`
	}{number, summary})
}

// meaning is the set of a version; an empty one for version 0 and for what this build cannot read, so that a broken document
// can always be replaced.
func (s *Service) meaning(ctx context.Context, number uint64) (*policy.Set, error) {
	if number == 0 {
		return policydoc.Load([]byte(EmptyDocument), policydoc.YAML)
	}
	c, err := s.At(ctx, number)
	if errors.Is(err, ErrUnreadable) || errors.Is(err, ErrNotFound) {
		return s.meaning(ctx, 0)
	}
	if err != nil {
		return nil, err
	}
	return c.Set, nil
}
