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
	force    Force
	changed  chan struct{} // closed when force changes
	versions map[uint64]*Compiled
}

// New makes a Service over store; now tells the time at which a version is put.
func New(store Store, now func() time.Time) *Service {
	return &Service{store: store, now: now, changed: make(chan struct{}), versions: map[uint64]*Compiled{}}
}

// Current returns the current version as this replica knows it, nil if there is none yet, and a channel that is closed when what is
// in force changes. It never asks the store.
func (s *Service) Current() (*Compiled, <-chan struct{}) {
	force, changed := s.InForce()
	return force.Now, changed
}

// InForce returns which versions are in force as this replica knows it, and a channel that is closed when that changes. It never
// asks the store.
func (s *Service) InForce() (Force, <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.force, s.changed
}

// Refresh learns from the store what is in force and returns the current version, nil if the store is empty. On any error what is in
// force stays. If the store has lost versions that this replica still has, it gets those in force back.
func (s *Service) Refresh(ctx context.Context) (*Compiled, error) {
	state, err := s.store.State(ctx)
	if err != nil {
		return nil, err
	}
	held, _ := s.InForce()
	if held.Now != nil && (state.Current < held.Current || state.Current == held.Current && state.Revision < held.Revision) {
		return s.restore(ctx, state, held)
	}
	if held.Now != nil && state.Current == held.Current && state.Revision == held.Revision {
		return held.Now, nil
	}
	if state.Current == 0 {
		return nil, nil
	}
	force := Force{State: state}
	if force.Now, err = s.At(ctx, state.Current); err != nil {
		return nil, err
	}
	if state.Rollout != nil {
		if force.Draft, err = s.At(ctx, state.Rollout.Version); err != nil {
			return nil, err
		}
	}
	return s.advance(force), nil
}

// restore puts what is held back into a store that came back with less than it had. Whoever else does the same at the same time
// wins or loses the race; either way the next Refresh finds it.
func (s *Service) restore(ctx context.Context, has State, held Force) (*Compiled, error) {
	step := Step{From: has, To: held.State, Entry: audit.Entry{
		Action: "policyset.restore", Resource: "policyset", Before: told(has.Current, ""),
		After: told(held.Current, held.Now.Version.Summary), Reason: "the store had lost it"}}
	step.To.Revision = max(has.Revision, held.Revision)
	for _, c := range []*Compiled{held.Now, held.Draft} {
		if c != nil && c.Version.Number > has.Newest {
			step.Versions = append(step.Versions, c.Version)
		}
	}
	if err := s.store.Roll(ctx, step); err != nil && !errors.Is(err, ErrConflict) {
		return nil, err
	}
	return held.Now, nil
}

// advance puts versions into force unless newer ones are already, and returns the current one.
func (s *Service) advance(next Force) *Compiled {
	s.mu.Lock()
	defer s.mu.Unlock()
	if held := s.force; held.Now != nil && (held.Current > next.Current || held.Current == next.Current && held.Revision >= next.Revision) {
		return held.Now
	}
	s.force = next
	s.remember(next.Now)
	if next.Draft != nil {
		s.remember(next.Draft)
	}
	close(s.changed)
	s.changed = make(chan struct{})
	return next.Now
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

// Newest returns the current version as it was written; version 0 with EmptyDocument if there is none.
func (s *Service) Newest(ctx context.Context) (Version, error) {
	state, err := s.store.State(ctx)
	if err != nil {
		return Version{}, err
	}
	return s.written(ctx, state.Current)
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
	// Nodes is the share of the nodes that get the new version, in percent; 0 is all of them, as Everyone is.
	Nodes int
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
	// Rollout is the rollout that begins, nil for a version that all nodes get. Apart are the policies whose buckets its two versions
	// do not share.
	Rollout *Rollout
	Apart   []string
}

// Put validates a change, stores it and puts it into force on this replica. Errors: *policydoc.SyntaxError, policy.Problems,
// ErrConflict, *UnderWay, ErrNothingToKeep, or the store's.
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
	state, err := s.store.State(ctx)
	partly := c.Nodes > 0 && c.Nodes < Everyone
	switch {
	case err != nil:
		return Outcome{}, err
	case !c.Any && state.Current != c.Expected:
		return Outcome{}, ErrConflict
	case state.Rollout != nil:
		return Outcome{}, &UnderWay{*state.Rollout}
	case partly && state.Current == 0:
		return Outcome{}, ErrNothingToKeep
	}
	if c.Edit != nil {
		written, err := s.written(ctx, state.Current)
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
	before, err := s.meaning(ctx, state.Current)
	if err != nil {
		return Outcome{}, err
	}
	out := Outcome{Version: max(state.Newest, state.Current) + 1, Diff: Compare(before, set), Set: set}
	out.Summary = c.Reason + out.Diff.String()
	now := s.now().UTC()
	if partly {
		out.Rollout = &Rollout{Version: out.Version, Base: state.Current, Nodes: c.Nodes, Since: now, By: c.Entry.By}
		out.Apart = Apart(before, set)
	}
	if c.DryRun {
		return out, nil
	}
	digest := sha256.Sum256(c.Document)
	v := Version{
		Number: out.Version, Time: now, Author: c.Entry.By, Digest: hex.EncodeToString(digest[:]),
		Summary: out.Summary, Format: c.Format, Document: c.Document,
	}
	c.Entry.Before, c.Entry.After = told(state.Current, ""), told(v.Number, v.Summary)
	if partly {
		c.Entry.After = toldBegun(v.Summary, *out.Rollout)
	}
	return out, s.storeNext(ctx, state, v, out, c.Entry)
}

// storeNext stores a new version for all nodes, or for those of a rollout, and puts it into force on this replica.
func (s *Service) storeNext(ctx context.Context, from State, v Version, out Outcome, e audit.Entry) error {
	to := from
	to.Newest = v.Number
	if out.Rollout != nil {
		v.Rollout = RolloutUnderWay
		to.Revision++
		to.Rollout = out.Rollout
		if err := s.store.Roll(ctx, Step{From: from, To: to, Versions: []Version{v}, Entry: e}); err != nil {
			return err
		}
		_, _ = s.Refresh(ctx) // Or the next poll finds it.
		return nil
	}
	if err := s.store.Append(ctx, from.Current, v, e); err != nil {
		return err
	}
	to.Current = v.Number
	s.advance(Force{State: to, Now: newCompiled(v, out.Set)})
	return nil
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
