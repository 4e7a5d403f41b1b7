package storetest

import (
	"context"
	"errors"
	"reflect"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weir-proxy/weir/controlplane/internal/consumers"
)

// writeConsumer makes one change.
func writeConsumer(ctx context.Context, s *Instance, w consumers.Write) (uint64, error) {
	return s.WriteConsumers(ctx, consumers.Changes{Writes: []consumers.Write{w}})
}

func consumerKey(n int) consumers.Key { return consumers.Key{byte(n), byte(n >> 8), 0xff} }

func testConsumers(t *testing.T, s *Instance) {
	ctx := testContext(t)
	read := func(n int) consumers.Record {
		t.Helper()
		records, _, err := s.Consumers(ctx, []consumers.Key{consumerKey(99), consumerKey(n)})
		if err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(records[0], consumers.Record{}) {
			t.Errorf("nobody is %+v", records[0])
		}
		return records[1]
	}
	if n := must[uint64](t)(s.ConsumerRevision(ctx)); n != 0 {
		t.Errorf("an empty store is at revision %d", n)
	}
	if l := must[consumers.Log](t)(s.ConsumerLog(ctx, 0)); l.Revision != 0 || len(l.Changes) != 0 {
		t.Errorf("an empty store has the log %+v", l)
	}
	premium := consumers.Record{Tier: "premium", Updated: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), By: "ädmin"}
	first := must[uint64](t)(writeConsumer(ctx, s, consumers.Write{Key: consumerKey(1), Record: &premium}))
	want := premium
	want.Revision = first
	if got := read(1); !reflect.DeepEqual(got, want) {
		t.Errorf("read %+v, want %+v", got, want)
	}
	if _, err := writeConsumer(ctx, s, consumers.Write{Key: consumerKey(1), Record: &premium}); !errors.Is(err, consumers.ErrConflict) {
		t.Errorf("another record, expecting none: %v", err)
	}
	if _, err := writeConsumer(ctx, s, consumers.Write{Key: consumerKey(2), Any: true}); !errors.Is(err, consumers.ErrNotFound) {
		t.Errorf("forgetting nobody: %v", err)
	}
	free := consumers.Record{Tier: "free", Updated: premium.Updated}
	second := must[uint64](t)(writeConsumer(ctx, s, consumers.Write{Key: consumerKey(2), Any: true, Record: &free}))
	third := must[uint64](t)(writeConsumer(ctx, s, consumers.Write{Key: consumerKey(1), Expected: first, Record: &free}))
	s.Restart(t)
	fourth := must[uint64](t)(writeConsumer(ctx, s, consumers.Write{Key: consumerKey(2), Expected: second}))
	if !(first < second && second < third && third < fourth) || must[uint64](t)(s.ConsumerRevision(ctx)) != fourth {
		t.Errorf("revisions %d %d %d %d", first, second, third, fourth)
	}
	if got := read(2); !reflect.DeepEqual(got, consumers.Record{}) {
		t.Errorf("forgotten, but %+v", got)
	}
	l := must[consumers.Log](t)(s.ConsumerLog(ctx, 0))
	if l.Revision != fourth || !l.Whole || l.Floor >= first {
		t.Errorf("log %+v", l)
	}
	last := map[consumers.Key]consumers.Change{}
	for _, c := range l.Changes {
		last[c.Key] = c
	}
	if one, two := last[consumerKey(1)], last[consumerKey(2)]; len(last) != 2 || one.Revision != third || one.Record.Tier != "free" ||
		one.Record.Revision != third || !reflect.DeepEqual(two, consumers.Change{Revision: fourth, Key: consumerKey(2)}) {
		t.Errorf("changes %+v", l.Changes)
	}
}

func testConsumerList(t *testing.T, s *Instance) {
	ctx := testContext(t)
	const all = 300
	for n := range all {
		must[uint64](t)(writeConsumer(ctx, s, consumers.Write{Key: consumerKey(n), Record: &consumers.Record{Tier: "free", By: "me"}}))
	}
	seen, token := map[consumers.Key]bool{}, ""
	for pages := 0; ; pages++ {
		list, next, err := s.ListConsumers(ctx, consumers.List{Token: token, Limit: 50})
		if err != nil || pages > all {
			t.Fatalf("page %d: %v", pages, err)
		}
		for _, one := range list {
			seen[one.Key] = one.Tier == "free" && one.By == "me" && one.Revision > 0
		}
		if token = next; token == "" {
			break
		}
	}
	for n := range all {
		if !seen[consumerKey(n)] {
			t.Fatalf("consumer %d is not listed as it is", n)
		}
	}
	if len(seen) != all {
		t.Errorf("%d listed", len(seen))
	}
	if _, _, err := s.ListConsumers(ctx, consumers.List{Token: "a token", Limit: 50}); !errors.Is(err, consumers.ErrToken) {
		t.Errorf("an invented token: %v", err)
	}
}

func testConsumerLogIsBounded(t *testing.T, s *Instance) {
	ctx := testContext(t)
	r := consumers.Record{Tier: "free"}
	var revisions []uint64
	for n := range consumers.KeptChanges + 5 {
		revisions = append(revisions, must[uint64](t)(writeConsumer(ctx, s, consumers.Write{Key: consumerKey(n), Record: &r})))
	}
	l := must[consumers.Log](t)(s.ConsumerLog(ctx, 0))
	if len(l.Changes) != consumers.KeptChanges || l.Whole || l.Floor != revisions[4] || l.Changes[0].Revision != revisions[5] {
		t.Errorf("%d changes from %d, floor %d, whole %v; the sixth change was %d", len(l.Changes), l.Changes[0].Revision, l.Floor, l.Whole, revisions[5])
	}
}

func testConsumerRace(t *testing.T, s *Instance) {
	ctx := testContext(t)
	var won atomic.Int64
	var wait sync.WaitGroup
	for range 16 {
		wait.Go(func() {
			switch _, err := writeConsumer(ctx, s, consumers.Write{Key: consumerKey(1), Record: &consumers.Record{Tier: "free"}}); {
			case err == nil:
				won.Add(1)
			case !errors.Is(err, consumers.ErrConflict):
				t.Error(err)
			}
		})
	}
	wait.Wait()
	if won.Load() != 1 {
		t.Errorf("%d of 16 writers won", won.Load())
	}
}
