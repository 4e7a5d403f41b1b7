package policies

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/weir-proxy/weir/controlplane/internal/ground/errs"
	"github.com/weir-proxy/weir/controlplane/internal/rules/policydoc"
)

// remembered is the number of versions in memory for nodes that still use an older version.
const remembered = 32

// rememberedBytes bounds the size of all these documents: a version in memory takes about ten times
// the size of its document.
const rememberedBytes = 4 << 20

// Service manages the policy set. Make a Service with New. It is safe for concurrent use.
type Service struct {
	store Store
	now   func() time.Time
	files string

	mu       sync.Mutex
	active   Active
	changed  chan struct{} // closed when active changes
	versions map[uint64]*Compiled
	// taken is the highest number that a node has reported.
	taken uint64
	// unlogged is a restore of the store whose answer did not come: perhaps the store has it, and
	// the log does not say so yet. It is nil if there is none.
	unlogged *restored

	log  *slog.Logger
	lost func()
}

// Config configures a Service. All fields are required unless they say otherwise.
type Config struct {
	Store Store
	// Now returns the time at which a version is put.
	Now func() time.Time
	// Log receives warnings that the store has lost versions; nil discards them.
	Log *slog.Logger
	// Lost, if not nil, is called after each such loss.
	Lost func()
	// Files is the path of the files that alone define the policy set, for messages; empty if
	// requests change the policy set.
	Files string
}

// New makes a Service.
func New(c Config) *Service {
	s := &Service{
		store: c.Store, now: c.Now, log: c.Log, lost: c.Lost, files: c.Files,
		changed: make(chan struct{}), versions: map[uint64]*Compiled{},
	}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	if s.lost == nil {
		s.lost = func() {}
	}
	return s
}

// Current returns the current version as this replica knows it, nil if there is none yet, and a
// channel that is closed when the versions in force change. It never asks the store.
func (s *Service) Current() (*Compiled, <-chan struct{}) {
	active, changed := s.Active()
	return active.Current, changed
}

// Active returns the versions in force as this replica knows them, and a channel that is closed
// when they change. It never asks the store.
func (s *Service) Active() (Active, <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.active, s.changed
}

// At returns a version by number. Errors: ErrNotFound, ErrUnreadable, which wraps the reason why
// this build cannot read the document, or the error of the store.
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
	c, err = compileVersion(v)
	if err != nil {
		return nil, fmt.Errorf("%w: version %d: %w", ErrUnreadable, number, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.remember(c)
	return c, nil
}

// exact returns a version like At, by number and digest: it forgets another version with that
// number. The error is errs.Conflict if the store has another version.
func (s *Service) exact(ctx context.Context, number uint64, digest string) (*Compiled, error) {
	if number == 0 {
		return nil, ErrNotFound
	}
	c, err := s.At(ctx, number)
	if err != nil || digest == "" || c.Version.Digest == digest {
		return c, err
	}
	s.mu.Lock()
	delete(s.versions, number)
	s.mu.Unlock()
	c, err = s.At(ctx, number)
	if err == nil && c.Version.Digest != digest {
		return nil, errs.Conflict
	}
	return c, err
}

// remember keeps c, and forgets the oldest of the other versions while they are too many or too
// large. The caller holds the lock.
func (s *Service) remember(c *Compiled) {
	s.versions[c.Version.Number] = c
	size := 0
	for _, known := range s.versions {
		size += len(known.Version.Document)
	}
	for len(s.versions) > remembered || len(s.versions) > 1 && size > rememberedBytes {
		oldest := uint64(math.MaxUint64)
		for n := range s.versions {
			if n != c.Version.Number {
				oldest = min(oldest, n)
			}
		}
		size -= len(s.versions[oldest].Version.Document)
		delete(s.versions, oldest)
	}
}

// Load returns a stored version, even if this build cannot read it. While the store is away it
// returns the version of this replica, and the error of the store as away.
func (s *Service) Load(ctx context.Context, number uint64) (v Version, away, err error) {
	v, err = s.store.Load(ctx, number)
	if err == nil || errors.Is(err, ErrNotFound) {
		return v, nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if c := s.versions[number]; c != nil {
		return c.Version, err, nil
	}
	return v, nil, err
}

// Newest returns the current version as it was written; version 0 with EmptyDocument if there is
// none. While the store is away it returns the version of this replica, and the error of the store
// as away; if this replica has no version, err.
func (s *Service) Newest(ctx context.Context) (v Version, away, err error) {
	state, err := s.store.State(ctx)
	if err != nil {
		held, _ := s.Current()
		if held == nil {
			return v, nil, err
		}
		return held.Version, err, nil
	}
	v, err = s.currentVersion(ctx, state)
	return v, nil, err
}

func (s *Service) currentVersion(ctx context.Context, state State) (Version, error) {
	if state.Current == 0 {
		return Version{Format: policydoc.YAML, Document: []byte(EmptyDocument)}, nil
	}
	held, _ := s.Active()
	if held.Current != nil && held.State.Current == state.Current && held.State.Digest == state.Digest {
		return held.Current.Version, nil
	}
	return s.store.Load(ctx, state.Current)
}

// List returns at most limit versions below before, the newest first, without documents. A before
// of 0 starts at the newest. While the store is away it returns the versions in this replica's
// memory, and the error of the store as away.
func (s *Service) List(ctx context.Context, before uint64, limit int) (list []Version, away, err error) {
	list, err = s.store.List(ctx, before, limit)
	if err == nil {
		return list, nil, nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.active.Current == nil {
		return nil, nil, err
	}
	for n, c := range s.versions {
		if before == 0 || n < before {
			v := c.Version
			v.Document = nil
			list = append(list, v)
		}
	}
	slices.SortFunc(list, func(a, b Version) int { return cmp.Compare(b.Number, a.Number) })
	return list[:min(len(list), limit)], err, nil
}
