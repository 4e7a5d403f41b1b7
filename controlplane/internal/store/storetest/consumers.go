package storetest

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weir-proxy/weir/controlplane/internal/ground/audit"
	"github.com/weir-proxy/weir/controlplane/internal/ground/errs"
	"github.com/weir-proxy/weir/controlplane/internal/rules/consumers"
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/quota"
)

// writeConsumer makes one change.
func writeConsumer(ctx context.Context, s *Instance, w consumers.Write) (uint64, error) {
	return consumers.Kept{In: s}.WriteConsumers(ctx, consumers.Changes{Writes: []consumers.Write{w}})
}

func consumerKey(n int) keyhash.Key { return keyhash.Key{byte(n), byte(n >> 8), 0xff} }

func testConsumers(t *testing.T, s *Instance) {
	ctx := testContext(t)
	read := func(n int) consumers.Record {
		t.Helper()
		records, _, err := consumers.Kept{In: s}.Consumers(ctx, []keyhash.Key{consumerKey(99), consumerKey(n)})
		if err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(records[0], consumers.Record{}) {
			t.Errorf("a key without a record has %+v", records[0])
		}
		return records[1]
	}
	l := must[consumers.Log](t)(consumers.Kept{In: s}.ConsumerLog(ctx, 0))
	if l.Revision != 0 || len(l.Changes) != 0 {
		t.Errorf("an empty store has the log %+v", l)
	}
	premium := consumers.Record{Tier: "premium", Updated: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), By: "ädmin"}
	first := must[uint64](t)(writeConsumer(ctx, s, consumers.Write{Key: consumerKey(1), Record: &premium}))
	want := premium
	want.Revision = first
	if got := read(1); !reflect.DeepEqual(got, want) {
		t.Errorf("read %+v, want %+v", got, want)
	}
	_, err := writeConsumer(ctx, s, consumers.Write{Key: consumerKey(1), Record: &premium})
	if !errors.Is(err, errs.Conflict) {
		t.Errorf("another record, expecting none: %v", err)
	}
	_, err = writeConsumer(ctx, s, consumers.Write{Key: consumerKey(2), Any: true})
	if !errors.Is(err, consumers.ErrNotFound) {
		t.Errorf("forgetting a key without a record: %v", err)
	}
	free := consumers.Record{Tier: "free", Updated: premium.Updated}
	second := must[uint64](t)(writeConsumer(ctx, s, consumers.Write{Key: consumerKey(2), Any: true, Record: &free}))
	change := consumers.Write{Key: consumerKey(1), Expected: first, Record: &free}
	third := must[uint64](t)(writeConsumer(ctx, s, change))
	s.Restart(t)
	fourth := must[uint64](t)(writeConsumer(ctx, s, consumers.Write{Key: consumerKey(2), Expected: second}))
	if !(first < second && second < third && third < fourth) {
		t.Errorf("revisions %d %d %d %d", first, second, third, fourth)
	}
	if got := read(2); !reflect.DeepEqual(got, consumers.Record{}) {
		t.Errorf("forgotten, but %+v", got)
	}
	l = must[consumers.Log](t)(consumers.Kept{In: s}.ConsumerLog(ctx, 0))
	if l.Revision != fourth || !l.Whole || l.Floor >= first {
		t.Errorf("log %+v", l)
	}
	last := map[keyhash.Key]consumers.Change{}
	for _, c := range l.Changes {
		last[c.Key] = c
	}
	free.Revision = third
	if !reflect.DeepEqual(last, map[keyhash.Key]consumers.Change{
		consumerKey(1): {Revision: third, Key: consumerKey(1), Record: free},
		consumerKey(2): {Revision: fourth, Key: consumerKey(2)},
	}) {
		t.Errorf("changes %+v", l.Changes)
	}
}

func testConsumerList(t *testing.T, s *Instance) {
	ctx := testContext(t)
	const all = 300
	for n := range all {
		must[uint64](t)(writeConsumer(ctx, s,
			consumers.Write{Key: consumerKey(n), Record: &consumers.Record{Tier: "free", By: "me"}}))
	}
	seen, token := map[keyhash.Key]bool{}, ""
	for pages := 0; ; pages++ {
		list, next, err := consumers.Kept{In: s}.ListConsumers(ctx, consumers.List{Token: token, Limit: 50})
		if err != nil || pages > all {
			t.Fatalf("page %d: %v", pages, err)
		}
		for _, one := range list {
			seen[one.Key] = one.Tier == "free" && one.By == "me" && one.Revision > 0
		}
		token = next
		if token == "" {
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
	if _, _, err := (consumers.Kept{In: s}).ListConsumers(ctx,
		consumers.List{Token: "a token", Limit: 50}); !errors.Is(err, consumers.ErrToken) {
		t.Errorf("an invented token: %v", err)
	}
}

func testConsumerLogIsBounded(t *testing.T, s *Instance) {
	ctx := testContext(t)
	r := consumers.Record{Tier: "free"}
	var revisions []uint64
	for n := range consumers.KeptChanges + 5 {
		revisions = append(revisions,
			must[uint64](t)(writeConsumer(ctx, s, consumers.Write{Key: consumerKey(n), Record: &r})))
	}
	l := must[consumers.Log](t)(consumers.Kept{In: s}.ConsumerLog(ctx, 0))
	if len(l.Changes) != consumers.KeptChanges || l.Whole || l.Floor != revisions[4] ||
		l.Changes[0].Revision != revisions[5] {
		t.Errorf("%d changes from %d, floor %d, whole %v; the sixth change was %d", len(l.Changes),
			l.Changes[0].Revision, l.Floor, l.Whole, revisions[5])
	}
}

func testConsumerRace(t *testing.T, s *Instance) {
	ctx := testContext(t)
	var won atomic.Int64
	var wait sync.WaitGroup
	for range 16 {
		wait.Go(func() {
			switch _, err := writeConsumer(ctx, s,
				consumers.Write{Key: consumerKey(1), Record: &consumers.Record{Tier: "free"}}); {
			case err == nil:
				won.Add(1)
			case !errors.Is(err, errs.Conflict):
				t.Error(err)
			}
		})
	}
	wait.Wait()
	if won.Load() != 1 {
		t.Errorf("%d of 16 writers won", won.Load())
	}
}

// checkExceptions checks whether there are consumers with exceptions, and the revision of the
// exceptions.
func checkExceptions(t *testing.T, s *Instance, special bool, revision uint64) {
	t.Helper()
	ctx := testContext(t)
	l := must[consumers.Log](t)(consumers.Kept{In: s}.ConsumerLog(ctx, 0))
	_, known, err := consumers.Kept{In: s}.Consumers(ctx, []keyhash.Key{consumerKey(1)})
	if err != nil || l.Special != special || l.ExceptionsRevision != revision ||
		known.ExceptionsRevision != revision || known.Revision != l.Revision {
		t.Errorf("%+v, %+v (%v), want special %v at revision %d", l.State, known, err, special, revision)
	}
}

func testSpecialConsumers(t *testing.T, s *Instance) {
	ctx := testContext(t)
	soon := time.Now().Add(time.Hour).UTC().Truncate(time.Millisecond)
	write := func(n int, r *consumers.Record) uint64 {
		return must[uint64](t)(writeConsumer(ctx, s, consumers.Write{Key: consumerKey(n), Any: true, Record: r}))
	}
	state := func(special bool, revision uint64) { t.Helper(); checkExceptions(t, s, special, revision) }
	write(1, &consumers.Record{Tier: "free"})
	state(false, 0)
	own := consumers.Override{Policy: "p", Mark: consumers.Mark{Expires: soon}}
	own.Limits = []consumers.Limit{{Quota: 5, Window: quota.Minute, Burst: 2}}
	full := &consumers.Record{
		Tier: "gold", By: "me", Updated: soon, Banned: &consumers.Mark{Reason: "ä", Expires: soon},
		Bypass: &consumers.Mark{}, Overrides: []consumers.Override{own},
	}
	want := *full
	want.Revision = write(1, full)
	state(true, 1)
	s.Restart(t)
	records, _, err := consumers.Kept{In: s}.Consumers(ctx, []keyhash.Key{consumerKey(1)})
	if err != nil || !reflect.DeepEqual(records[0], want) {
		t.Errorf("read %+v, want %+v (%v)", records[0], want, err)
	}
	second := write(2, &consumers.Record{Banned: &consumers.Mark{}})
	write(3, &consumers.Record{Bypass: &consumers.Mark{}})
	state(true, 3)
	banned := must[[]consumers.Listed](t)(consumers.Kept{In: s}.BannedConsumers(ctx, 10))
	last := must[[]consumers.Listed](t)(consumers.Kept{In: s}.BannedConsumers(ctx, 1))
	if len(banned) != 2 || last[0].Key != consumerKey(2) {
		t.Errorf("banned are %+v", banned)
	}
	listed, _, err := consumers.Kept{In: s}.ListConsumers(ctx, consumers.List{Limit: 50, Banned: true})
	if err != nil || len(listed) != 2 || listed[0].Banned == nil || listed[1].Banned == nil {
		t.Errorf("listed are %+v (%v)", listed, err)
	}
	later := must[consumers.Log](t)(consumers.Kept{In: s}.ConsumerLog(ctx, second)).Changes
	if len(later) != 1 || later[0].Key != consumerKey(3) || later[0].Record.Bypass == nil {
		t.Errorf("after revision %d: %+v", second, later)
	}
	// The end of an exception is a change too. A revision that was seen elsewhere is exceeded.
	write(2, &consumers.Record{Tier: "free"})
	write(3, nil)
	write(4, &consumers.Record{Tier: "free"})
	state(true, 5)
	from40 := consumers.Changes{ExceptionsRevision: 40, Writes: []consumers.Write{{Key: consumerKey(1), Any: true}}}
	must[uint64](t)(consumers.Kept{In: s}.WriteConsumers(ctx, from40))
	state(false, 41)
	if banned := must[[]consumers.Listed](t)((consumers.Kept{In: s}).BannedConsumers(ctx, 10)); len(banned) != 0 {
		t.Errorf("still banned are %+v", banned)
	}
	// An exception that has ended does not count.
	write(5, &consumers.Record{Banned: &consumers.Mark{Expires: time.Now().Add(-time.Hour)}})
	state(false, 42)
}

// testManyConsumers writes two full batches of consumers and overwrites the half of the first
// batch: 1500 consumers, the first 500 with tier a, the others with tier b, all banned.
func testManyConsumers(t *testing.T, s *Instance) {
	ctx := testContext(t)
	batch := func(from, count int, tier string) (c consumers.Changes) {
		for n := range count {
			c.Writes = append(c.Writes, consumers.Write{Key: consumerKey(from + n), Any: true,
				Record: &consumers.Record{Tier: tier, Banned: &consumers.Mark{}}})
		}
		c.Entry = audit.Entry{Action: "consumers.put", After: audit.Value(count)}
		return c
	}
	first := must[uint64](t)(consumers.Kept{In: s}.WriteConsumers(ctx, batch(0, consumers.MaxBatch, "a")))
	second := must[uint64](t)(consumers.Kept{In: s}.WriteConsumers(ctx, batch(500, consumers.MaxBatch, "b")))
	// The log has the newest changes: the second batch.
	l := must[consumers.Log](t)(consumers.Kept{In: s}.ConsumerLog(ctx, 0))
	if l.Revision != second || second <= first || l.ExceptionsRevision != 2 ||
		len(l.Changes) != consumers.KeptChanges ||
		l.Floor != first || l.Whole {
		t.Errorf("revisions %d and %d, of exceptions %d, %d changes, floor %d", first, second,
			l.ExceptionsRevision, len(l.Changes), l.Floor)
	}
	for _, c := range l.Changes {
		if c.Revision != second || c.Record.Tier != "b" {
			t.Fatalf("change %+v", c)
		}
	}
	// One unexpected revision stops all changes of the commit.
	c := batch(0, 3, "c")
	c.Writes[2].Any = false
	if _, err := (consumers.Kept{In: s}).WriteConsumers(ctx, c); !errors.Is(err, errs.Conflict) {
		t.Errorf("a conflict: %v", err)
	}
	// Each consumer has its last record. The consumer 1500 does not exist and has no tier.
	records, _, err := consumers.Kept{In: s}.Consumers(ctx,
		[]keyhash.Key{consumerKey(0), consumerKey(499), consumerKey(500), consumerKey(1499), consumerKey(1500)})
	if err != nil || records[0].Tier+records[1].Tier+records[2].Tier+records[3].Tier+records[4].Tier != "aabb" ||
		records[0].Revision != first || records[3].Revision != second {
		t.Errorf("%+v (%v)", records, err)
	}
	// A list of the banned consumers has the length that was asked for.
	if n := len(must[[]consumers.Listed](t)((consumers.Kept{In: s}).BannedConsumers(ctx, 1234))); n != 1234 {
		t.Errorf("%d of the 1500 banned consumers are listed, want 1234", n)
	}
	// The audit has one entry for each batch.
	all := must[[]audit.Entry](t)(s.Audit(ctx, "", 10))
	if len(all) != 2 || all[0].Before != nil || string(all[0].After) != fmt.Sprint(consumers.MaxBatch) {
		t.Errorf("audit %+v", all)
	}
}
