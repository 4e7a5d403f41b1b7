package policies_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/weir-proxy/weir/controlplane/internal/audit"
	"github.com/weir-proxy/weir/controlplane/internal/policies"
	"github.com/weir-proxy/weir/controlplane/internal/policydoc"
	"github.com/weir-proxy/weir/shared/policy"
)

var errAway = errors.New("away")

// memory is a store that a test can break, empty and change behind the service's back.
type memory struct {
	mu       sync.Mutex
	versions map[uint64]policies.Version
	current  uint64
	away     bool
	loads    int
	// before runs once before the next Append, like another writer that is faster.
	before func()
}

func newMemory() *memory { return &memory{versions: map[uint64]policies.Version{}} }

func (m *memory) Current(context.Context) (uint64, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.away {
		return 0, errAway
	}
	return m.current, nil
}

func (m *memory) Load(_ context.Context, n uint64) (policies.Version, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.loads++
	v, ok := m.versions[n]
	switch {
	case m.away:
		return v, errAway
	case !ok:
		return v, policies.ErrNotFound
	}
	return v, nil
}

func (m *memory) Append(_ context.Context, expected uint64, v policies.Version, _ audit.Entry) error {
	m.mu.Lock()
	before := m.before
	m.before = nil
	m.mu.Unlock()
	if before != nil {
		before()
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case m.away:
		return errAway
	case m.current != expected:
		return policies.ErrConflict
	}
	m.versions[v.Number], m.current = v, v.Number
	return nil
}

func (m *memory) List(context.Context, uint64, int) ([]policies.Version, error) {
	return nil, errAway
}

func (m *memory) set(change func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	change()
}

func newService(m *memory) *policies.Service {
	return policies.New(m, func() time.Time { return time.Unix(1, 0) })
}

// document is a policy set of policies with the given quotas, named p0, p1, …
func document(quotas ...int) []byte {
	doc := "version: weir/v1\npolicies:\n"
	for i, q := range quotas {
		doc += fmt.Sprintf("  - {name: p%d, partition: [], limit: {quota: %d, window: 1m}}\n", i, q)
	}
	return []byte(doc)
}

func put(t *testing.T, s *policies.Service, expected uint64, doc []byte) policies.Outcome {
	t.Helper()
	out, err := s.Put(t.Context(), policies.Change{Expected: expected, Document: doc, Format: policydoc.YAML, Entry: audit.Entry{By: "me"}})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestPut(t *testing.T) {
	m := newMemory()
	s := newService(m)
	if current, _ := s.Current(); current != nil {
		t.Fatalf("an empty service has %+v", current)
	}
	_, changed := s.Current()
	out := put(t, s, 0, document(10, 20))
	if out.Version != 1 || out.Diff.String() != "2 added" {
		t.Errorf("%+v", out)
	}
	select {
	case <-changed:
	default:
		t.Error("nobody was told")
	}
	current, _ := s.Current()
	if p, ok := current.Policy("p1"); !ok || p.Limits[0].Quota != 20 {
		t.Errorf("p1 is %+v", p)
	}
	if _, ok := current.Policy("p2"); ok {
		t.Error("p2 exists")
	}
	v := m.versions[1]
	if v.Author != "me" || !v.Time.Equal(time.Unix(1, 0)) || v.Summary != "2 added" || len(v.Digest) != 64 {
		t.Errorf("stored %+v", v)
	}

	dry := policies.Change{Expected: 1, Document: document(11), Format: policydoc.YAML, DryRun: true}
	if out, err := s.Put(t.Context(), dry); err != nil || out.Version != 2 || out.Diff.String() != "1 removed, 1 changed" {
		t.Errorf("dry run: %+v, %v", out, err)
	}
	if m.current != 1 {
		t.Error("a dry run has stored something")
	}
}

func TestPutIsRefused(t *testing.T) {
	m := newMemory()
	s := newService(m)
	put(t, s, 0, document(10))
	for name, c := range map[string]struct {
		change policies.Change
		is     func(error) bool
	}{
		"unparsable":       {policies.Change{Expected: 1, Document: []byte("[")}, func(err error) bool { var e *policydoc.SyntaxError; return errors.As(err, &e) }},
		"invalid":          {policies.Change{Expected: 1, Document: []byte("{}")}, func(err error) bool { var e policy.Problems; return errors.As(err, &e) }},
		"older":            {policies.Change{Expected: 0, Document: document(1)}, func(err error) bool { return errors.Is(err, policies.ErrConflict) }},
		"newer":            {policies.Change{Expected: 2, Document: document(1)}, func(err error) bool { return errors.Is(err, policies.ErrConflict) }},
		"older, a dry run": {policies.Change{Expected: 0, Document: document(1), DryRun: true}, func(err error) bool { return errors.Is(err, policies.ErrConflict) }},
	} {
		if _, err := s.Put(t.Context(), c.change); !c.is(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
	m.set(func() { m.away = true })
	if _, err := s.Put(t.Context(), policies.Change{Expected: 1, Document: document(1)}); !errors.Is(err, errAway) {
		t.Errorf("without a store: %v", err)
	}
	if current, _ := s.Current(); current.Version.Number != 1 {
		t.Errorf("a refused change made %d current", current.Version.Number)
	}
}

func TestPutLosesAndWinsRaces(t *testing.T) {
	m := newMemory()
	s, other := newService(m), newService(m)
	put(t, s, 0, document(10))
	m.before = func() { put(t, other, 1, document(11)) }
	if _, err := s.Put(t.Context(), policies.Change{Expected: 1, Document: document(12)}); !errors.Is(err, policies.ErrConflict) {
		t.Errorf("the slower of two writers: %v", err)
	}
	m.before = func() { put(t, other, 2, document(13)) }
	out, err := s.Put(t.Context(), policies.Change{Any: true, Document: document(14)})
	if err != nil || out.Version != 4 {
		t.Errorf("who replaces whatever there is: %+v, %v", out, err)
	}
}

func TestRefresh(t *testing.T) {
	m := newMemory()
	s, other := newService(m), newService(m)
	if c, err := s.Refresh(t.Context()); c != nil || err != nil {
		t.Errorf("an empty store: %v, %v", c, err)
	}
	put(t, other, 0, document(10))
	_, changed := s.Current()
	if c, err := s.Refresh(t.Context()); err != nil || c.Version.Number != 1 {
		t.Fatalf("another replica's version: %v, %v", c, err)
	}
	select {
	case <-changed:
	default:
		t.Error("nobody was told")
	}
	m.set(func() { m.away = true })
	if _, err := s.Refresh(t.Context()); !errors.Is(err, errAway) {
		t.Errorf("without a store: %v", err)
	}
	if c, _ := s.Current(); c == nil || c.Version.Number != 1 {
		t.Error("without a store the version in memory is gone")
	}
}

// A document that a newer build stored and this one cannot read does not replace what is in use, and can itself be replaced.
func TestUnreadableVersion(t *testing.T) {
	m := newMemory()
	s := newService(m)
	put(t, s, 0, document(10))
	m.set(func() {
		m.current, m.versions[2] = 2, policies.Version{Number: 2, Format: policydoc.YAML, Document: []byte("version: weir/v2")}
	})
	if _, err := s.Refresh(t.Context()); !errors.Is(err, policies.ErrUnreadable) {
		t.Errorf("%v", err)
	}
	if c, _ := s.Current(); c.Version.Number != 1 {
		t.Errorf("current is %d", c.Version.Number)
	}
	if v, err := s.Newest(t.Context()); err != nil || string(v.Document) != "version: weir/v2" {
		t.Errorf("as it was written: %+v, %v", v, err)
	}
	if out := put(t, s, 2, document(10)); out.Version != 3 {
		t.Errorf("%+v", out)
	}
}

// A store that comes back empty gets the newest version back under its number.
func TestLostVersionsAreRestored(t *testing.T) {
	m := newMemory()
	s, other := newService(m), newService(m)
	put(t, s, 0, document(10))
	put(t, s, 1, document(11))
	if _, err := other.Refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	m.set(func() { m.current, m.versions = 0, map[uint64]policies.Version{} })
	for _, replica := range []*policies.Service{s, other} {
		if c, err := replica.Refresh(t.Context()); err != nil || c.Version.Number != 2 {
			t.Errorf("%v, %v", c, err)
		}
	}
	if m.current != 2 || len(m.versions) != 1 {
		t.Errorf("the store has version %d", m.current)
	}
}

func TestAtRemembersABoundedNumber(t *testing.T) {
	m := newMemory()
	s := newService(m)
	for n := range uint64(40) {
		put(t, s, n, document(int(n)+1))
	}
	m.loads = 0
	for _, c := range []struct {
		number uint64
		loads  int
	}{{40, 0}, {9, 0}, {8, 1}, {8, 1}, {40, 1}, {9, 2}, {40, 2}} {
		got, err := s.At(t.Context(), c.number)
		if err != nil || got.Version.Number != c.number || m.loads != c.loads {
			t.Errorf("version %d: %v, %d loads, want %d", c.number, err, m.loads, c.loads)
		}
	}
	if _, err := s.At(t.Context(), 99); !errors.Is(err, policies.ErrNotFound) {
		t.Errorf("version 99: %v", err)
	}
}
