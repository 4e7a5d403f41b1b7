package storetest

import (
	"strconv"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/weir-proxy/weir/controlplane/internal/regions"
)

// RunCell checks a cell without a value.
func RunCell(t *testing.T, c regions.Cell) {
	ctx := t.Context()
	if value, revision, now, err := c.Load(ctx); err != nil || value != nil || revision != 0 || now <= 0 {
		t.Fatalf("at first it holds %q at revision %d, time %d: %v", value, revision, now, err)
	}
	for _, s := range []struct {
		revision uint64
		value    string
		want     bool
	}{{1, "a", false}, {0, "b", true}, {0, "c", false}, {1, "d", true}, {1, "e", false}, {3, "f", false}} {
		if won, err := c.Swap(ctx, s.revision, []byte(s.value)); err != nil || won != s.want {
			t.Errorf("%q on revision %d: stored %v, %v", s.value, s.revision, won, err)
		}
	}
	value, revision, first, err := c.Load(ctx)
	if err != nil || string(value) != "d" || revision != 2 {
		t.Errorf("it holds %q at revision %d: %v", value, revision, err)
	}
	// Of writers that have read the same, one wins.
	const writers = 8
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
		t.Errorf("%d of %d writers won, revision %d, time %d after %d: %v", wins.Load(), writers, last, now, first, err)
	}
}
