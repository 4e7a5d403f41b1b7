package policies_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/weir-proxy/weir/controlplane/internal/ground/audit"
	"github.com/weir-proxy/weir/controlplane/internal/ground/errs"
	"github.com/weir-proxy/weir/controlplane/internal/rules/policies"
	"github.com/weir-proxy/weir/controlplane/internal/rules/policydoc"
	"github.com/weir-proxy/weir/shared/policy"
)

// more adds a comment, so that documents show who edited them how often.
func more(text string) func([]byte, policydoc.Format) ([]byte, error) {
	return func(doc []byte, _ policydoc.Format) ([]byte, error) { return append([]byte(text+"\n"), doc...), nil }
}

func TestEdit(t *testing.T) {
	m := newMemory()
	s, other := newService(m), newService(m)
	if _, err := s.Put(t.Context(), policies.Change{Expected: 0, Edit: more("# first")}); err != nil ||
		string(m.versions[1].Document) != "# first\n"+policies.EmptyDocument {
		t.Fatalf("%v: %s", err, m.versions[1].Document)
	}
	if _, err := s.Put(t.Context(),
		policies.Change{Expected: 0, Edit: more("# late")}); !errors.Is(err, errs.Conflict) {
		t.Errorf("an edit of an older version: %v", err)
	}
	// An edit of the present document loses to a faster writer, and is then made to the new
	// document of that writer.
	m.before = func() { put(t, other, 1, document(11)) }
	out, err := s.Put(t.Context(), policies.Change{Any: true, Edit: more("# mine"), Reason: "because: "})
	if err != nil || out.Version != 3 || string(m.versions[3].Document) != "# mine\n"+string(document(11)) ||
		m.versions[3].Summary != "because: no change in meaning" {
		t.Errorf("%+v, %v: %+v", out, err, m.versions[3])
	}
	m.before = func() { put(t, other, 3, document(12)) }
	if _, err := s.Put(t.Context(),
		policies.Change{Expected: 3, Edit: more("# lost")}); !errors.Is(err, errs.Conflict) {
		t.Errorf("the slower of two editors: %v", err)
	}
	refused := errors.New("no")
	if _, err := s.Put(t.Context(),
		policies.Change{Any: true, Edit: func([]byte, policydoc.Format) ([]byte, error) {
			return nil, refused
		}}); !errors.Is(err, refused) {
		t.Errorf("an edit that fails: %v", err)
	}
}

// An empty list in a match, which would limit every request, is refused in a new document. A
// stored set that has one stays readable, comes back, and its other policies can be changed.
func TestEmptyListsAreRefusedWhereTheyAreNew(t *testing.T) {
	m := newMemory()
	empty := func(quota string, match string) []byte {
		return []byte("version: weir/v1\npolicies:\n  - {name: a, match: {" + match + "}, partition: [], " +
			"limit: {quota: " + quota + ", window: 1s}}\n")
	}
	s := newService(m)
	put(t, s, 0, empty("5", "methods: [GET]"))
	refused := func(c policies.Change, want string) {
		t.Helper()
		c.Any, c.Format = true, policydoc.YAML
		_, err := s.Put(t.Context(), c)
		problems, _ := policydoc.ProblemsOf(err)
		if len(problems) != 1 || !strings.HasPrefix(policydoc.Sentence("", problems[0]), want) {
			t.Errorf("%s is answered: %v, want %s", c.Document, err, want)
		}
	}
	refused(policies.Change{Document: empty("5", "paths: []")}, `line 3: policy "a": match.paths: is an empty list`)
	edit := func([]byte, policydoc.Format) ([]byte, error) { return empty("5", "tiers: []"), nil }
	refused(policies.Change{Edit: edit}, `policy "a": match.tiers: is an empty list`)

	// As a version before this rule stored it.
	v := m.versions[1]
	v.Document = empty("6", "paths: []")
	v.Digest = policies.Digest(v.Document)
	m.versions[1] = v
	s = newService(m)
	if current, err := s.Refresh(t.Context()); err != nil || current.Set.Policies[0].Limits[0].Quota != 6 {
		t.Fatalf("a stored set is read: %v", err)
	}
	put(t, s, 1, empty("7", "paths: []"))
	refused(policies.Change{Document: empty("7", "paths: [], hosts: []")}, `line 3: policy "a": match.hosts: is`)
	put(t, s, 2, empty("8", "paths: [/a]"))
	if out, err := s.Rollback(t.Context(), 2, policies.Change{Any: true}); err != nil || out.Version != 4 {
		t.Errorf("back to a version that has one: %+v, %v", out, err)
	}
}

func TestRollback(t *testing.T) {
	m := newMemory()
	s := newService(m)
	put(t, s, 0, document(10))
	put(t, s, 1, document(20))
	dry, err := s.Rollback(t.Context(), 1, policies.Change{Expected: 2, DryRun: true})
	if err != nil || dry.Version != 3 || m.current != 2 {
		t.Errorf("dry run: %+v, %v", dry, err)
	}
	if _, err := s.Rollback(t.Context(), 1, policies.Change{Expected: 1}); !errors.Is(err, errs.Conflict) {
		t.Errorf("of an older version: %v", err)
	}
	out, err := s.Rollback(t.Context(), 1, policies.Change{Expected: 2, Entry: audit.Entry{By: "me"}})
	v := m.versions[3]
	if err != nil || out.Version != 3 || string(v.Document) != string(document(10)) || v.Author != "me" ||
		v.Digest != m.versions[1].Digest ||
		v.Summary != "back to version 1: p0: limit 20 per 1m → 10 per 1m" {
		t.Errorf("%+v, %v: %+v", out, err, v)
	}
	if _, err := s.Rollback(t.Context(), 9, policies.Change{Any: true}); !errors.Is(err, policies.ErrNotFound) {
		t.Errorf("to a version that is not there: %v", err)
	}
	m.set(func() {
		m.versions[1] = policies.Version{Number: 1, Format: policydoc.YAML,
			Document: []byte("version: weir/v1\nnew: 1")}
	})
	var problems policy.Problems
	if _, err := s.Rollback(t.Context(), 1, policies.Change{Any: true}); !errors.Is(err, policies.ErrUnreadable) ||
		!errors.As(err, &problems) ||
		problems[0].Path != "new" || !strings.Contains(err.Error(), "version 1") || m.current != 3 {
		t.Errorf("to a version that cannot be read: %v", err)
	}
}

func TestBetween(t *testing.T) {
	m := newMemory()
	s := newService(m)
	put(t, s, 0, document(10))
	put(t, s, 1, document(10, 20))
	for _, c := range []struct {
		from, to uint64
		want     string
	}{{1, 2, "p1 added: 20 per 1m; leased"}, {2, 1, "p1 removed"}, {0, 2, "2 added"}, {2, 2, "no change in meaning"}} {
		if d, err := s.Between(t.Context(), c.from, c.to); err != nil || d.String() != c.want {
			t.Errorf("from %d to %d: %s, %v", c.from, c.to, d, err)
		}
	}
	if _, err := s.Between(context.Background(), 1, 7); !errors.Is(err, policies.ErrNotFound) ||
		!strings.Contains(err.Error(), "7") {
		t.Errorf("%v", err)
	}
}
