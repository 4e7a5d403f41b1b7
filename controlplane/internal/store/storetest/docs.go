package storetest

import (
	"errors"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/weir-proxy/weir/controlplane/internal/ground/audit"
	"github.com/weir-proxy/weir/controlplane/internal/ground/docs"
	"github.com/weir-proxy/weir/controlplane/internal/ground/errs"
)

// Documents are written on top of the expected revision together with their entries, or not at all.
func testDocuments(t *testing.T, s *Instance) {
	ctx := testContext(t)
	read := func(name docs.Name, known, revision uint64, value string) {
		t.Helper()
		d, now, err := s.Document(ctx, name, known)
		if err != nil || d.Revision != revision || string(d.Value) != value || now <= 0 {
			t.Errorf("%s: %d %q at %d, %v, want %d %q", name, d.Revision, d.Value, now, err, revision, value)
		}
	}
	write := func(expected, revision uint64, value string, want error, actions ...string) {
		t.Helper()
		w := docs.Write{Expected: expected, Doc: docs.Doc{Revision: revision, Value: []byte(value)}}
		for _, action := range actions {
			w.Entries = append(w.Entries, audit.Entry{Action: action})
		}
		if err := s.WriteDocument(ctx, docs.Enforcement, w); !errors.Is(err, want) {
			t.Errorf("%q over revision %d: %v, want %v", value, expected, err, want)
		}
	}
	const first, second = 1 << 41, 1<<41 + 7
	read(docs.Enforcement, 0, 0, "")
	read(docs.Enforcement, 5, 0, "")
	write(1, first, "a", errs.Conflict, "none")
	write(first, first, "a", errs.Conflict, "none")
	write(0, first, "ä\x00\n\"", nil, "one", "two")
	s.Restart(t)
	read(docs.Enforcement, 0, first, "ä\x00\n\"")
	read(docs.Enforcement, first-1, first, "ä\x00\n\"")
	read(docs.Enforcement, first, first, "")
	write(0, second, "c", errs.Conflict, "none")
	write(first, second, "", nil, "three")
	read(docs.Enforcement, 0, second, "")
	read(docs.Region, 0, 0, "")
	if h, err := s.Heads(ctx, [16]byte{1}); err != nil || h.Enforcement == nil || *h.Enforcement != second {
		t.Errorf("the heads are %+v, %v", h, err)
	}
	var kept []string
	for _, e := range must[[]audit.Entry](t)(s.Audit(ctx, "", 10)) {
		kept = append(kept, e.Action)
	}
	if !slices.Equal(kept, []string{"three", "two", "one"}) {
		t.Errorf("the audit has %v", kept)
	}
}

// Exactly one of several writers that have read the same revision succeeds.
func testCells(t *testing.T, s *Instance) {
	ctx := testContext(t)
	for _, c := range []docs.Cell{{Store: s, Name: docs.Region}, {Store: s, Name: docs.Regions}} {
		if value, revision, now, err := c.Load(ctx); err != nil || value != nil || revision != 0 || now <= 0 {
			t.Fatalf("at first %s holds %q at revision %d, time %d: %v", c.Name, value, revision, now, err)
		}
		for _, w := range []struct {
			revision uint64
			value    string
			want     bool
		}{{1, "a", false}, {0, "b", true}, {0, "c", false}, {1, "d", true}, {1, "e", false}, {3, "f", false}} {
			if won, err := c.Swap(ctx, w.revision, []byte(w.value)); err != nil || won != w.want {
				t.Errorf("%q on revision %d: stored %v, %v", w.value, w.revision, won, err)
			}
		}
		s.Restart(t)
		c.Store = s
		value, revision, first, err := c.Load(ctx)
		if err != nil || string(value) != "d" || revision != 2 {
			t.Errorf("%s holds %q at revision %d: %v", c.Name, value, revision, err)
		}
		const writers = 16
		var wins atomic.Int64
		var wait sync.WaitGroup
		for i := range writers {
			wait.Go(func() {
				if won, err := c.Swap(ctx, revision, []byte(strconv.Itoa(i))); err == nil && won {
					wins.Add(1)
				}
			})
		}
		wait.Wait()
		_, last, now, err := c.Load(ctx)
		if err != nil || wins.Load() != 1 || last != 3 || now < first {
			t.Errorf("%d of %d writers won, revision %d, time %d after %d: %v",
				wins.Load(), writers, last, now, first, err)
		}
	}
}
