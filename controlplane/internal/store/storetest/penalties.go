package storetest

import (
	"maps"
	"math/rand/v2"
	"reflect"
	"testing"
	"time"

	"github.com/weir-proxy/weir/controlplane/internal/fleet/penalties"
	"github.com/weir-proxy/weir/controlplane/internal/ground/audit"
	"github.com/weir-proxy/weir/controlplane/internal/ground/docs"
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/penalty"
)

// offered returns a node's report of the n-th caller: a penalty with a level that ends the number
// of minutes after a time that no clock of the suite has reached.
func offered(n, level, minutes int, at uint64) penalties.Known {
	now := time.Date(2050, 1, 1, 0, 0, 0, 0, time.UTC)
	until := now.Add(time.Duration(minutes) * time.Minute).UnixMilli()
	return penalties.Known{At: at, Record: penalties.Record{
		Key: consumerKey(n), Record: penalty.Record{Level: level, Until: until}, Forgotten: until + 3_600_000,
		Facts: penalties.Facts{Policy: "api", Node: "e", Since: now, Shadow: n%2 == 1, Consumer: "c",
			Version: uint64(n), Shown: map[string]string{"path": "/ä b"}},
	}}
}

func offer(t *testing.T, s *Instance, all ...penalties.Known) penalties.Outcome {
	t.Helper()
	return must[penalties.Outcome](t)(penalties.Kept{In: s}.Offer(testContext(t), all))
}

// penaltiesOf returns all records by caller, read in pages.
func penaltiesOf(t *testing.T, s *Instance, page int) (all map[keyhash.Key]penalties.Record, head docs.Head) {
	t.Helper()
	all = map[keyhash.Key]penalties.Record{}
	for after := uint64(0); ; {
		some, now, more, err := penalties.Kept{In: s}.Since(testContext(t), after, page)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range some {
			if r.Revision <= after {
				t.Fatalf("revision %d after %d", r.Revision, after)
			}
			after, all[r.Key] = r.Revision, r
		}
		if !more {
			return all, now
		}
	}
}

func testPenalties(t *testing.T, s *Instance) {
	ctx := testContext(t)
	if list, head := penaltiesOf(t, s, 10); len(list) != 0 || head != (docs.Head{}) {
		t.Errorf("an empty store has %v in %+v", list, head)
	}
	kept := penalties.Kept{In: s}
	if n := must[int](t)(kept.Pardon(ctx, []keyhash.Key{consumerKey(1)}, audit.Entry{Action: "a"})); n != 0 {
		t.Errorf("%d pardoned of none", n)
	}
	first := offered(1, 1, 5, 0)
	if done := offer(t, s, first, offered(2, 3, 9, 0)); done != (penalties.Outcome{Taken: 2}) {
		t.Errorf("two are offered: %+v", done)
	}
	all, state := penaltiesOf(t, s, 1)
	got := all[consumerKey(1)]
	first.Revision = got.Revision
	if !reflect.DeepEqual(got, first.Record) || len(all) != 2 || state.First == 0 || state.Revision <= got.Revision {
		t.Errorf("read %+v of %d in %+v, want %+v", got, len(all), state, first.Record)
	}
	// The penalty that ends later stays, in any order of arrival.
	for i, c := range []struct {
		penalties.Known
		taken int
	}{
		{offered(1, 9, 4, 0), 0}, {offered(1, 1, 6, 0), 1}, {offered(1, 1, 5, 0), 0}, {offered(1, 2, 60, 0), 1},
	} {
		if done := offer(t, s, c.Known); done.Taken != c.taken {
			t.Errorf("offer %d: %+v", i, done)
		}
	}
	s.Restart(t)
	again, after := penaltiesOf(t, s, 100)
	if again[consumerKey(1)].Level != 2 || again[consumerKey(2)].Level != 3 || after.Revision <= state.Revision ||
		after.First != state.First {
		t.Errorf("after a restart %+v in %+v", again, after)
	}
}

func testPardons(t *testing.T, s *Instance) {
	ctx := testContext(t)
	offer(t, s, offered(1, 1, 5, 0), offered(2, 2, 5, 0), offered(3, 3, 5, 0))
	_, before := penaltiesOf(t, s, 100)
	keys := []keyhash.Key{consumerKey(1), consumerKey(9)}
	one := audit.Entry{By: "me", Action: "penalties.pardon"}
	if n := must[int](t)(penalties.Kept{In: s}.Pardon(ctx, keys, one)); n != 1 {
		t.Errorf("%d pardoned", n)
	}
	all, state := penaltiesOf(t, s, 100)
	r := all[consumerKey(1)]
	if r.Level != 0 || r.Until != 0 || r.Policy != "api" || r.Revision != state.Revision || len(all) != 3 {
		t.Errorf("pardoned is %+v of %d in %+v", r, len(all), state)
	}
	// A report from before the pardon has no effect; a report from after it has.
	if done := offer(t, s, offered(1, 4, 90, before.Revision)); done.Taken != 0 {
		t.Errorf("a report from before the pardon: %+v", done)
	}
	if done := offer(t, s, offered(1, 1, 1, state.Revision)); done.Taken != 1 {
		t.Errorf("a report from after the pardon: %+v", done)
	}
	_, known := penaltiesOf(t, s, 100)
	everyone := audit.Entry{By: "me", Action: "penalties.pardon", Reason: "all"}
	must1(t, penalties.Kept{In: s}.Clear(ctx, everyone))
	all, state = penaltiesOf(t, s, 100)
	if len(all) != 0 || state.Cleared != state.Revision || state.Revision <= known.Revision ||
		state.First != known.First {
		t.Errorf("all are pardoned: %v in %+v", all, state)
	}
	if done := offer(t, s, offered(2, 5, 90, known.Revision)); done.Taken != 0 {
		t.Errorf("a report from before the pardon of all: %+v", done)
	}
	if done := offer(t, s, offered(2, 1, 1, state.Revision)); done.Taken != 1 {
		t.Errorf("a report from after the pardon of all: %+v", done)
	}
	entries := must[[]audit.Entry](t)(s.Audit(ctx, "", 10))
	if len(entries) != 2 || entries[0].Reason != "all" || entries[1].Action != "penalties.pardon" {
		t.Errorf("audit %+v", entries)
	}
}

func testForgottenPenalties(t *testing.T, s *Instance) {
	old := offered(1, 1, 1, 0)
	old.Until, old.Forgotten = 1, 2
	offer(t, s, old, offered(2, 1, 5, 0))
	offer(t, s, offered(3, 1, 5, 0))
	if all, _ := penaltiesOf(t, s, 100); len(all) != 2 || all[consumerKey(1)].Revision != 0 {
		t.Errorf("forgotten penalties are kept: %v", all)
	}
	must1(t, penalties.Kept{In: s}.Note(testContext(t), audit.Entry{Action: "penalties.begun", After: audit.Value(3)}))
	entries := must[[]audit.Entry](t)(s.Audit(testContext(t), "", 10))
	if len(entries) != 1 || string(entries[0].After) != "3" {
		t.Errorf("audit %+v", entries)
	}
}

// penaltyGame is a set of replicas over one store, each with an old copy of the records, and the
// model: the records after Record.Takes and pardons one by one.
type penaltyGame struct {
	*testing.T
	s      *Instance
	random *rand.Rand
	copies [2]copied
	model  map[keyhash.Key]penalties.Record
	head   docs.Head
	// pardoned are the revisions of the last pardon of each caller.
	pardoned map[keyhash.Key]uint64
	step     int
	late     int // changes on top of an old copy
	pardons  int
}

type copied struct {
	records map[keyhash.Key]penalties.Record
	head    docs.Head
}

// kept returns the store as seen by one of the copies.
func (g *penaltyGame) kept(c *copied) penalties.Kept {
	if c.head != g.head {
		g.late++
	}
	return penalties.Kept{In: g.s, Random: g.random.Float64,
		Held: func(keys []keyhash.Key) (map[keyhash.Key]penalties.Record, docs.Head, bool) {
			of := map[keyhash.Key]penalties.Record{}
			for _, key := range keys {
				if r, ok := c.records[key]; ok {
					of[key] = r
				}
			}
			return of, c.head, c.records != nil
		}}
}

// offer lets a replica offer some records at once, and the model takes them one by one. If the
// caller has offended again since a pardon, a report from before the pardon is dropped, which only
// the record shows. A replica that knows of neither drops the report too; any other replica takes
// it.
func (g *penaltyGame) offer(c *copied) {
	g.Helper()
	var all []penalties.Known
	for range 1 + g.random.IntN(3) {
		// A node knows at most as much as the replica that it asks, or as the other replica had
		// sent before.
		at := g.copies[g.random.IntN(len(g.copies))].head.Revision
		o := offered(g.random.IntN(4), 1+g.random.IntN(3), g.random.IntN(30), at)
		if at >= g.pardoned[o.Key] || g.model[o.Key].Level == 0 {
			all = append(all, o)
		}
	}
	want := 0
	for i := range all {
		held := g.model[all[i].Key]
		if held.Takes(&all[i], g.head.Cleared) {
			want++
			r := all[i].Record
			r.Revision = held.Revision
			g.model[r.Key] = r
		}
	}
	done := must[penalties.Outcome](g.T)(g.kept(c).Offer(testContext(g.T), all))
	if done.Taken != want {
		g.Fatalf("step %d: %+v of %+v, want %d taken", g.step, done, all, want)
	}
}

// pardon lets a replica pardon some callers, the callers whose penalty it knows, or all callers.
func (g *penaltyGame) pardon(c *copied) {
	g.Helper()
	if g.random.IntN(8) == 0 {
		must1(g.T, g.kept(c).Clear(testContext(g.T), audit.Entry{}))
		clear(g.model)
		return
	}
	keys, want := []keyhash.Key{consumerKey(g.random.IntN(4)), consumerKey(4)}, 0
	if known := c.records[keys[0]]; known.Level == 0 && c.records != nil {
		return
	}
	if held := g.model[keys[0]]; held.Level > 0 {
		want, g.model[keys[0]] = 1, held.Pardoned()
		g.pardons++
	}
	if n := must[int](g.T)(g.kept(c).Pardon(testContext(g.T), keys, audit.Entry{})); n != want {
		g.Fatalf("step %d: %d pardoned, want %d", g.step, n, want)
	}
}

// check compares the store with the model and copies the revisions into the model.
func (g *penaltyGame) check() {
	g.Helper()
	stored, head := penaltiesOf(g.T, g.s, 3)
	if head.Revision < g.head.Revision || len(stored) != len(g.model) {
		g.Fatalf("step %d: %d records at %+v after %+v, want %d", g.step, len(stored), head, g.head, len(g.model))
	}
	for key, want := range g.model {
		got := stored[key]
		want.Revision = got.Revision
		if !reflect.DeepEqual(got, want) {
			g.Fatalf("step %d: %+v, want %+v", g.step, got, want)
		}
	}
	g.model, g.head = stored, head
	for key, r := range stored {
		if r.Level == 0 {
			g.pardoned[key] = r.Revision
		}
	}
}

// Replicas with copies of any age leave the same records in the store as a replica that knows all.
func testPenaltiesFollowTheRule(t *testing.T, s *Instance) {
	g := &penaltyGame{T: t, s: s, random: rand.New(rand.NewPCG(1, 2)),
		model: map[keyhash.Key]penalties.Record{}, pardoned: map[keyhash.Key]uint64{}}
	for g.step = range 400 {
		c := &g.copies[g.random.IntN(len(g.copies))]
		switch g.random.IntN(10) {
		case 0:
			g.pardon(c)
		case 1, 2:
			c.records, c.head = maps.Clone(g.model), g.head
		default:
			g.offer(c)
		}
		g.check()
	}
	if g.head.Cleared == 0 || g.late < 50 || g.pardons < 5 {
		t.Errorf("%d changes on old copies, %d pardons, head %+v", g.late, g.pardons, g.head)
	}
}
