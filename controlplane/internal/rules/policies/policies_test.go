package policies_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weir-proxy/weir/controlplane/internal/ground/audit"
	"github.com/weir-proxy/weir/controlplane/internal/ground/errs"
	"github.com/weir-proxy/weir/controlplane/internal/rules/policies"
	"github.com/weir-proxy/weir/controlplane/internal/rules/policydoc"
	"github.com/weir-proxy/weir/shared/policy"
)

var errAway = errors.New("away")

// memory is a store that a test can break, empty and change behind the service's back.
type memory struct {
	mu       sync.Mutex
	versions map[uint64]policies.Version
	current  uint64
	revision uint64
	rollout  *policies.Rollout
	entries  []audit.Entry // of rollouts
	away     bool
	loads    int
	// mute: steps are taken, and their answers are lost.
	mute bool
	// before runs once before the next Append, like another writer that is faster. busy, if not
	// nil, runs before each.
	before, busy func()
}

func newMemory() *memory { return &memory{versions: map[uint64]policies.Version{}} }

func (m *memory) State(context.Context) (policies.State, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.away {
		return policies.State{}, errAway
	}
	return m.state(), nil
}

// state has the highest number from the versions. The lock is held.
func (m *memory) state() policies.State {
	state := policies.State{Current: m.current, Revision: m.revision, Rollout: m.rollout, Newest: m.current,
		Digest: m.versions[m.current].Digest}
	if m.rollout != nil {
		state.DraftDigest = m.versions[m.rollout.Version].Digest
	}
	for n := range m.versions {
		state.Newest = max(state.Newest, n)
	}
	return state
}

func (m *memory) Roll(_ context.Context, step policies.Step) error {
	if m.away {
		return errAway
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.current != step.From.Current || m.revision != step.From.Revision {
		return errs.Conflict
	}
	for _, v := range step.Versions {
		if v.Document == nil {
			v.Document = m.versions[v.Number].Document
		}
		m.versions[v.Number] = v
	}
	m.current, m.revision, m.rollout = step.To.Current, step.To.Revision, step.To.Rollout
	m.entries = append(m.entries, step.Entry)
	if m.mute {
		return errAway
	}
	return nil
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
	before, busy := m.before, m.busy
	m.before = nil
	m.mu.Unlock()
	if busy != nil {
		busy()
	}
	if before != nil {
		before()
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case m.away:
		return errAway
	case m.current != expected:
		return errs.Conflict
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
	return policies.New(policies.Config{Store: m, Now: func() time.Time { return time.Unix(1, 0) }})
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
	out, err := s.Put(t.Context(),
		policies.Change{Expected: expected, Document: doc, Format: policydoc.YAML, Entry: audit.Entry{By: "me"}})
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
		t.Error("no listener was called")
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
	if out, err := s.Put(t.Context(), dry); err != nil || out.Version != 2 ||
		out.Diff.String() != "1 removed, 1 changed" {
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
		"unparsable": {policies.Change{Expected: 1, Document: []byte("[")},
			func(err error) bool { var e *policydoc.SyntaxError; return errors.As(err, &e) }},
		"invalid": {policies.Change{Expected: 1, Document: []byte("{}")},
			func(err error) bool { var e policy.Problems; return errors.As(err, &e) }},
		"older": {policies.Change{Expected: 0, Document: document(1)},
			func(err error) bool { return errors.Is(err, errs.Conflict) }},
		"newer": {policies.Change{Expected: 2, Document: document(1)},
			func(err error) bool { return errors.Is(err, errs.Conflict) }},
		"older, a dry run": {policies.Change{Expected: 0, Document: document(1), DryRun: true},
			func(err error) bool { return errors.Is(err, errs.Conflict) }},
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
	if _, err := s.Put(t.Context(),
		policies.Change{Expected: 1, Document: document(12)}); !errors.Is(err, errs.Conflict) {
		t.Errorf("the slower of two writers: %v", err)
	}
	m.before = func() { put(t, other, 2, document(13)) }
	out, err := s.Put(t.Context(), policies.Change{Any: true, Document: document(14)})
	if err != nil || out.Version != 4 {
		t.Errorf("who replaces whatever there is: %+v, %v", out, err)
	}
}

// An edit of the present document also ends if other writers are always faster, and the answer says
// how to go on.
func TestPutGivesUp(t *testing.T) {
	m := newMemory()
	s := newService(m)
	put(t, s, 0, document(10))
	m.busy = func() { m.set(func() { m.current++; m.versions[m.current] = m.versions[m.current-1] }) }
	_, err := s.Put(t.Context(), policies.Change{Any: true, Document: document(14)})
	if !errors.Is(err, policies.ErrContended) || errors.Is(err, errs.Conflict) {
		t.Errorf("with a store that changes all the time: %v", err)
	}
	if m.current < 3 || m.current > 100 {
		t.Errorf("it was tried %d times", m.current-1)
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
		t.Error("no listener was called")
	}
	m.set(func() { m.away = true })
	if _, err := s.Refresh(t.Context()); !errors.Is(err, errAway) {
		t.Errorf("without a store: %v", err)
	}
	if c, _ := s.Current(); c == nil || c.Version.Number != 1 {
		t.Error("without a store the version in memory is gone")
	}
}

// A document that a newer build stored and this build cannot read does not replace the set in use,
// and can itself be replaced.
func TestUnreadableVersion(t *testing.T) {
	m := newMemory()
	s := newService(m)
	put(t, s, 0, document(10))
	m.set(func() {
		m.current, m.versions[2] = 2, policies.Version{Number: 2, Format: policydoc.YAML,
			Document: []byte("version: weir/v2")}
	})
	if _, err := s.Refresh(t.Context()); !errors.Is(err, policies.ErrUnreadable) {
		t.Errorf("%v", err)
	}
	if c, _ := s.Current(); c.Version.Number != 1 {
		t.Errorf("current is %d", c.Version.Number)
	}
	if v, _, err := s.Newest(t.Context()); err != nil || string(v.Document) != "version: weir/v2" {
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

// A store that has gone back and was given another version by the same number: that one is
// acknowledged, so it is in force, by a number that no node and no bucket knows.
func TestANumberThatIsUsedTwice(t *testing.T) {
	m := newMemory()
	s := newService(m)
	put(t, s, 0, document(10))
	put(t, s, 1, document(2000))
	m.set(func() { m.current = 1; delete(m.versions, 2) })
	after := newService(m) // It has never seen the lost version.
	if out := put(t, after, 1, document(50)); out.Version != 2 {
		t.Fatalf("%+v", out)
	}
	for range 2 {
		if _, err := s.Refresh(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	for name, replica := range map[string]*policies.Service{"held the lost one": s, "did not": after} {
		if _, err := replica.Refresh(t.Context()); err != nil {
			t.Fatal(err)
		}
		now, _ := replica.Current()
		if now.Version.Number != 3 || now.Set.Policies[0].Limits[0].Quota != 50 {
			t.Errorf("the replica that %s has version %d: %s", name, now.Version.Number, now.Version.Document)
		}
		second, err := replica.At(t.Context(), 2)
		if err != nil || second.Set.Policies[0].Limits[0].Quota != 50 {
			t.Errorf("the replica that %s takes for version 2 %s, %v", name, second.Version.Document, err)
		}
		if newest, _, err := replica.Newest(t.Context()); err != nil || newest.Number != 3 ||
			string(newest.Document) != string(document(50)) {
			t.Errorf("the newest is %+v, %v", newest, err)
		}
	}
	if e := m.entries[len(m.entries)-1]; e.Action != "policyset.renumber" {
		t.Errorf("the audit ends with %+v", e)
	}
}

// A loss is reported once, also if the answer to the restoring is lost.
func TestALossIsSaidWhereTheAnswerIsLost(t *testing.T) {
	m, losses := newMemory(), 0
	s := policies.New(policies.Config{Store: m, Now: func() time.Time { return time.Unix(1, 0) },
		Lost: func() { losses++ }})
	put(t, s, 0, document(10))
	put(t, s, 1, document(20))
	m.set(func() { m.current, m.mute = 1, true; delete(m.versions, 2) })
	if _, err := s.Refresh(t.Context()); !errors.Is(err, errAway) {
		t.Fatalf("the answer came: %v", err)
	}
	m.set(func() { m.mute = false })
	for range 3 {
		if now, err := s.Refresh(t.Context()); err != nil || now.Version.Number != 2 {
			t.Errorf("in force is %+v, %v", now, err)
		}
	}
	if m.current != 2 || losses != 1 {
		t.Errorf("the store is at version %d, %d losses are said", m.current, losses)
	}
}

// A writer comes before the replica has noticed that the store went back: first the acknowledged
// versions come back.
func TestAChangeMeetsAStoreThatWentBack(t *testing.T) {
	m := newMemory()
	s := newService(m)
	put(t, s, 0, document(10))
	put(t, s, 1, document(20))
	m.set(func() { m.current = 1; delete(m.versions, 2) })
	if _, err := s.Put(t.Context(),
		policies.Change{Expected: 1, Document: document(50), Format: policydoc.YAML}); !errors.Is(err, errs.Conflict) {
		t.Errorf("over the version before the lost one: %v", err)
	}
	if m.current != 2 || string(m.versions[2].Document) != string(document(20)) {
		t.Errorf("the store is at version %d", m.current)
	}
	m.set(func() { m.current = 1; delete(m.versions, 2) })
	out, err := s.Put(t.Context(), policies.Change{Any: true, Document: document(50), Format: policydoc.YAML})
	if err != nil || out.Version != 3 || len(m.versions) != 3 {
		t.Errorf("over whatever there is: %+v, %v; %d versions", out, err, len(m.versions))
	}
}

// Nodes that outlive a restore hold versions that neither the store nor a replica knows: their
// numbers are taken.
func TestNumbersOfNodesAreTaken(t *testing.T) {
	for _, c := range []struct{ node, want uint64 }{{0, 2}, {1, 2}, {2, 3}, {7, 8}, {65, 66}, {66, 2}, {1 << 60, 2}} {
		s := newService(newMemory())
		put(t, s, 0, document(10))
		s.Taken(c.node)
		if out := put(t, s, 1, document(20)); out.Version != c.want {
			t.Errorf("with a node at %d the next version is %d, want %d", c.node, out.Version, c.want)
		}
	}
}

// The number of a restored version may belong to another version by then, like the number of a
// draft that was taken back.
func TestARestoredVersionWhoseNumberIsTaken(t *testing.T) {
	m := newMemory()
	s := newService(m)
	put(t, s, 0, document(10))
	put(t, s, 1, document(20))
	m.set(func() {
		m.current = 1
		m.versions[2] = policies.Version{Number: 2, Digest: "another", Rollout: policies.RolloutTakenBack,
			Format: policydoc.YAML, Document: document(30)}
	})
	for range 2 {
		if _, err := s.Refresh(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	now, _ := s.Current()
	if m.current != 3 || now.Version.Number != 3 || string(now.Version.Document) != string(document(20)) ||
		m.versions[2].Digest != "another" {
		t.Errorf("the store is at version %d, in force is %d: %s", m.current, now.Version.Number, now.Version.Document)
	}
}

// A job that puts the present document each minute loses no history by it.
func TestTheSameDocumentMakesNoNewVersion(t *testing.T) {
	m := newMemory()
	s := newService(m)
	put(t, s, 0, document(10))
	put(t, s, 1, document(20))
	for _, nodes := range []int{0, 25} {
		out, err := s.Put(t.Context(),
			policies.Change{Expected: 2, Document: document(20), Format: policydoc.YAML, Nodes: nodes})
		if err != nil || !out.Unchanged || out.Version != 2 || out.Rollout != nil ||
			out.Summary != "no change in meaning" {
			t.Errorf("%+v, %v", out, err)
		}
	}
	if out, err := s.Rollback(t.Context(), 2, policies.Change{Expected: 2}); err != nil || !out.Unchanged ||
		out.Version != 2 || out.Summary != "no change: version 2 has this document already" {
		t.Errorf("back to the set in force: %+v, %v", out, err)
	}
	if len(m.versions) != 2 {
		t.Errorf("%d versions", len(m.versions))
	}
	if _, err := s.Put(t.Context(),
		policies.Change{Expected: 1, Document: document(20), Format: policydoc.YAML}); !errors.Is(err, errs.Conflict) {
		t.Errorf("over another version: %v", err)
	}
	other := append([]byte("# a comment\n"), document(20)...)
	if out := put(t, s, 2, other); out.Unchanged || out.Version != 3 {
		t.Errorf("other words of the same meaning: %+v", out)
	}
}

// Ready versions are bounded by the size of their documents too.
func TestAtRemembersABoundedSize(t *testing.T) {
	m := newMemory()
	s := newService(m)
	large := func(n int) []byte { return append(document(n), "# "+strings.Repeat("x", 1000<<10)+"\n"...) }
	for n := range uint64(6) {
		put(t, s, n, large(int(n)+1))
	}
	m.loads = 0
	for _, c := range []struct {
		number uint64
		loads  int
	}{{6, 0}, {5, 0}, {4, 0}, {3, 0}, {2, 1}} {
		if got, err := s.At(t.Context(), c.number); err != nil || got.Version.Number != c.number || m.loads != c.loads {
			t.Errorf("version %d: %v, %d loads, want %d", c.number, err, m.loads, c.loads)
		}
	}
}

// The limits of a list, and a limit that goes over to tiers and back, keep their buckets over
// versions that are put, read by another replica, rolled out, taken back and rolled back.
func TestLimitsKeepTheirBuckets(t *testing.T) {
	m := newMemory()
	s, other := newService(m), newService(m)
	number := uint64(0)
	roots := func(set *policy.Set) (all []string) {
		for _, l := range set.Policies[0].Limits {
			all = append(all, fmt.Sprint(l.Quota, "/", policy.FormatSpan(l.Window), ":", policy.FormatSpan(l.Root)))
		}
		return all
	}
	for _, c := range []struct{ limits, want string }{
		{"limit: {quota: 10, window: 1d}", "[10/1d:0s]"},
		{"limit: [{quota: 10, window: 1d}, {quota: 100, window: 30d}]", "[10/1d:0s 100/30d:30d]"},
		{"limit: [{quota: 100, window: 30d}, {quota: 5, window: 1s}, {quota: 10, window: 1d}]",
			"[100/30d:30d 5/1s:1s 10/1d:0s]"},
		{"limit: [{quota: 100, window: 20d}, {quota: 5, window: 2s}, {quota: 10, window: 1d}]",
			"[100/20d:30d 5/2s:1s 10/1d:0s]"},
		{"limits: {free: {quota: 20, window: 1d}, gold: [{quota: 9, window: 2s}, {quota: 99, window: 1d}]}",
			"[20/1d:0s 9/2s:1s 99/1d:0s]"},
		{"limits: {gold: [{quota: 99, window: 1d}, {quota: 9, window: 2s}], free: {quota: 20, window: 1h}}",
			"[20/1h:0s 99/1d:0s 9/2s:1s]"},
		{"limit: {quota: 20, window: 1d}", "[20/1d:0s]"},
	} {
		doc := "version: weir/v1\ntiers: [free, gold]\nidentity: {default_tier: free}\npolicies:\n" +
			"  - {name: p, partition: [], " + c.limits + "}\n"
		put(t, s, number, []byte(doc))
		number++
		for _, one := range []*policies.Service{s, other} {
			if _, err := one.Refresh(t.Context()); err != nil {
				t.Fatal(err)
			}
			if now, _ := one.Current(); fmt.Sprint(roots(now.Set)) != c.want {
				t.Errorf("%s: %v, want %s", c.limits, roots(now.Set), c.want)
			}
		}
	}
}
