package calls_test

import (
	"slices"
	"testing"
	"time"

	"github.com/weir-proxy/weir/controlplane/controlplanetest"
	"github.com/weir-proxy/weir/controlplane/internal/serve/calls"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/wire"
)

// A policy is for a descriptor with the same keys and values: in their order if the entries have an
// order, else in any order.
func TestPoliciesAreFoundByDescriptors(t *testing.T) {
	store := &controlplanetest.Store{Now: func() quota.Instant { return 1 }}
	plane := controlplanetest.New(store, 1, 1, time.Now, func() float64 { return 0 })
	snapshot, set, err := plane.Put(0, []byte(`
version: weir/v1
policies:
  - {name: all, match: {domain: d}, partition: [], limit: {quota: 1, window: 1s}, mode: strict}
  - name: path-first
    match: {domain: d, descriptors: [{name: path, prefix: /a}, {name: user, present: true}]}
    partition: []
    limit: {quota: 1, window: 1s}
    mode: strict
  - name: user-first
    match: {descriptors: [{name: user, present: true}, {name: path, present: true}]}
    partition: []
    limit: {quota: 1, window: 1s}
    mode: strict
  - name: other
    match: {domain: e, descriptors: [{name: user, present: true}]}
    partition: []
    limit: {quota: 1, window: 1s}
  - {name: requests, partition: [], limit: {quota: 1, window: 1s}}
`))
	if err != nil {
		t.Fatal(err)
	}
	view, err := calls.NewView(snapshot, set, &wire.Enforcement{}, 0)
	if err != nil {
		t.Fatal(err)
	}
	user, path, away := calls.Entry{Key: "user", Value: "u"}, calls.Entry{Key: "path", Value: "/a"},
		calls.Entry{Key: "path", Value: "/b"}
	for _, c := range []struct {
		domain   string
		entries  []calls.Entry
		inOrder  []string
		anyOrder []string
	}{
		{"d", nil, []string{"all"}, []string{"all"}},
		{"e", nil, nil, nil},
		{"d", []calls.Entry{path, user}, []string{"path-first"}, []string{"path-first", "user-first"}},
		{"e", []calls.Entry{path, user}, nil, []string{"user-first"}},
		{"d", []calls.Entry{away, user}, nil, []string{"user-first"}},
		{"d", []calls.Entry{user, path}, []string{"user-first"}, nil},
		{"e", []calls.Entry{user}, []string{"other"}, []string{"other"}},
		{"d", []calls.Entry{path, path}, nil, nil},
	} {
		var inOrder, anyOrder []string
		view.Find(c.domain, c.entries, nil, func(n uint32) { inOrder = append(inOrder, set.Policies[n].Name) })
		view.FindAnyOrder(c.domain, c.entries, func(n uint32) { anyOrder = append(anyOrder, set.Policies[n].Name) })
		if !slices.Equal(inOrder, c.inOrder) || !slices.Equal(anyOrder, c.anyOrder) {
			t.Errorf("%s %v: %v in order and %v in any, want %v and %v",
				c.domain, c.entries, inOrder, anyOrder, c.inOrder, c.anyOrder)
		}
	}
}
