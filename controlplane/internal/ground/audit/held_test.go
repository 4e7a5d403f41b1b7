package audit_test

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"testing"
	"time"

	"github.com/weir-proxy/weir/controlplane/internal/ground/audit"
)

// growing is a store whose entries have the numbers from 1 to n.
type growing struct {
	n    int
	away bool
}

func (g *growing) Audit(_ context.Context, before string, limit int) (list []audit.Entry, err error) {
	if g.away {
		return nil, errors.New("away")
	}
	for i := g.n; i > 0 && len(list) < limit; i-- {
		if id := fmt.Sprintf("%09d", i); before == "" || id < before {
			list = append(list, audit.Entry{ID: id, By: fmt.Sprint("by ", i%3), At: time.Unix(int64(i), 0)})
		}
	}
	return list, nil
}

// The entries in memory answer as the store did when it was last read.
func TestHeldEntriesAnswerAsTheStoreDid(t *testing.T) {
	store, now := &growing{}, time.Unix(1_000_000, 0)
	h := audit.NewHeld(store, func() time.Time { return now })
	find := func(in audit.Store, q audit.Query, limit int) string {
		list, next, err := audit.Find(t.Context(), in, q, limit)
		return fmt.Sprint(list, next, err)
	}
	if held, read := h.InMemory(); !read.IsZero() || find(held, audit.Query{}, 5) == find(store, audit.Query{}, 5) {
		t.Error("entries that were never read are held")
	}
	for round := range 60 {
		store.n += 7 * (round % 5)
		now = now.Add(time.Second)
		if _, err := h.Audit(t.Context(), "", 10+round); err != nil { // People read pages of any length.
			t.Fatal(err)
		}
		if _, err := h.Audit(t.Context(), "000000003", 5); err != nil { // An older page says nothing of the newest.
			t.Fatal(err)
		}
		held, read := h.InMemory()
		if !read.Equal(now) {
			t.Errorf("read at %v, want %v", read, now)
		}
		for _, q := range []audit.Query{{}, {By: "by 1"}, {Since: time.Unix(int64(store.n-5), 0)}} {
			// A page of 10 has at least three of each.
			if got, want := find(held, q, 3), find(store, q, 3); store.n > 40 && got != want {
				t.Errorf("of %d, %+v: %s, want %s", store.n, q, got, want)
			}
		}
	}
	store.away = true
	held, _ := h.InMemory()
	if _, err := h.Audit(t.Context(), "", 5); err == nil {
		t.Error("the store is not away")
	}
	again, _ := h.InMemory()
	if !reflect.DeepEqual(held, again) {
		t.Error("a store that is away has changed the held entries")
	}
}
