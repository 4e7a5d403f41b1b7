package series_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math/rand/v2"
	"reflect"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/weir-proxy/weir/controlplane/internal/observe/series"
	"github.com/weir-proxy/weir/controlplane/internal/rules/policies"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/wire"
)

// memory is a store that can be away.
type memory struct {
	slots map[series.Slot]map[string][]byte
	away  bool
}

var errAway = errors.New("the store is away")

func (m *memory) PutSlot(_ context.Context, slot series.Slot, replica string, text []byte) error {
	if m.away {
		return errAway
	}
	if m.slots[slot] == nil {
		m.slots[slot] = map[string][]byte{}
	}
	m.slots[slot][replica] = text
	return nil
}

func (m *memory) Slots(_ context.Context, slots []series.Slot) (found []map[string][]byte, err error) {
	if m.away {
		return nil, errAway
	}
	for _, slot := range slots {
		found = append(found, m.slots[slot])
	}
	return found, nil
}

// world is some replicas over one store, and a clock that begins at a full hour.
type world struct {
	t     *testing.T
	store *memory
	now   time.Time
	all   []*series.Service
}

func newWorld(t *testing.T) *world {
	return &world{t: t, store: &memory{slots: map[series.Slot]map[string][]byte{}},
		now: time.Date(2030, 1, 1, 12, 0, 0, 0, time.UTC)}
}

func (w *world) replica(name string) *series.Service {
	s := series.New(series.Config{Store: w.store, Replica: name, Now: func() time.Time { return w.now },
		Log: slog.New(slog.NewTextHandler(io.Discard, nil))})
	w.all = append(w.all, s)
	return s
}

// pass lets time pass, with a tick of every replica each 5 s.
func (w *world) pass(d time.Duration) {
	w.t.Helper()
	for end := w.now.Add(d); w.now.Before(end); {
		w.now = w.now.Add(series.Every)
		for _, s := range w.all {
			if err := s.Tick(w.t.Context()); (err != nil) != w.store.away {
				w.t.Fatalf("a tick: %v", err)
			}
		}
	}
}

// sets are the names of policies by their places.
func sets(names ...string) *policies.Compiled {
	set := &policy.Set{}
	for _, name := range names {
		set.Policies = append(set.Policies, policy.Policy{Name: name})
	}
	return &policies.Compiled{Set: set}
}

func refused(node string, of uint32, n int64) *wire.Decisions {
	return &wire.Decisions{Node: []byte(node), Counts: []wire.RefusedCount{{Policy: of, Refused: n}}}
}

func asked(node string, of uint32, n int64) *wire.Decisions {
	return &wire.Decisions{Node: []byte(node), Callers: []wire.CallerCount{{Policy: of, Count: n, Over: n / 2}}}
}

func measured(node string, covers quota.Span, of ...wire.Measure) *wire.Measures {
	return &wire.Measures{Node: []byte(node), Covers: covers, Items: of}
}

func always(string) bool { return true }

// text writes series as lines of a name, an outcome, a total and the last values; ? is not known.
func text(a series.Answer, last int) string {
	var b strings.Builder
	for _, s := range a.Series {
		fmt.Fprintf(&b, "%s%s %s %v:", s.Policy, s.Node, s.Outcome, s.Total)
		for _, v := range s.Values[len(s.Values)-last:] {
			if v == nil {
				b.WriteString(" ?")
			} else {
				fmt.Fprintf(&b, " %v", *v)
			}
		}
		b.WriteString("\n")
	}
	return b.String()
}

func hour(by series.By, outcomes ...series.Outcome) series.Query {
	return series.Query{By: by, Outcomes: outcomes, Kind: series.Fine, Step: 10 * time.Second, Range: time.Hour,
		Most: 50}
}

func (w *world) see(s *series.Service, q series.Query, last int, want string) {
	w.t.Helper()
	if got := text(s.Read(q), last); got != want {
		w.t.Errorf("got\n%swant\n%s", got, want)
	}
}

func TestReplicasAgree(t *testing.T) {
	w, set := newWorld(t), sets("a", "b")
	one, other := w.replica("one"), w.replica("other")
	one.Heard(set, refused("edge-1", 0, 3))
	other.Heard(set, refused("edge-2", 0, 4))
	other.Heard(set, asked("edge-2", 1, 32))
	one.Heard(set, refused("edge-1", 9, 100)) // The set has no such policy.
	w.pass(10 * time.Second)
	other.Heard(set, refused("edge-1", 1, 2))
	one.Granted("b", 20, 0)
	w.pass(10 * time.Second) // A replica sees slots of a tick ago.
	for _, s := range w.all {
		w.see(s, hour(series.ByPolicy, series.Refused), 4, "a refused 7: ? 7 0 0\nb refused 2: ? 0 2 0\n")
		w.see(s, hour(series.ByPolicy, series.Requests, series.Tokens), 3,
			"b requests 34: 32 2 0\nb tokens 20: 0 20 0\na requests 7: 7 0 0\na tokens 0: 0 0 0\n")
		w.see(s, hour(series.ByNode, series.Refused), 3, "edge-1 refused 5: 3 2 0\nedge-2 refused 4: 4 0 0\n")
		w.see(s, hour(series.ByAll, series.Refused), 3, " refused 9: 7 2 0\n")
		named := hour(series.ByPolicy, series.Refused)
		named.Names = []string{"b", "never"}
		w.see(s, named, 3, "b refused 2: 0 2 0\nnever refused 0: 0 0 0\n")
		few := hour(series.ByPolicy, series.Refused)
		few.Most = 1
		w.see(s, few, 3, "a refused 7: 7 0 0\n")
	}
	// A replica that starts later, or in place of another replica, knows the earlier history.
	late := w.replica("late")
	w.pass(5 * time.Second)
	w.see(late, hour(series.ByPolicy, series.Refused), 4, "a refused 7: ? 7 0 0\nb refused 2: ? 0 2 0\n")
}

// Tokens that went back lower the next figure, so that all figures together are the used tokens.
// The counts of earlier slots stay.
func TestTokensThatWentBack(t *testing.T) {
	w := newWorld(t)
	s := w.replica("one")
	s.Granted("model", 1000, 0)
	s.Granted("other", 7, 0)
	w.pass(10 * time.Second)
	s.Granted("model", 0, 980) // It has cost 20.
	w.pass(10 * time.Second)
	s.Granted("model", 1000, 0)
	s.Granted("model", 300, 700) // More comes back than the next ones are.
	s.Granted("model", 250, 0)
	w.pass(10 * time.Second)
	w.see(s, hour(series.ByPolicy, series.Tokens), 4, "model tokens 1020: 1000 0 20 0\nother tokens 7: 7 0 0 0\n")
}

// Any replica may hear of requests in flight. They count when and where they were, once.
func TestInFlightOverReplicas(t *testing.T) {
	w := newWorld(t)
	one, other := w.replica("one"), w.replica("other")
	// Two nodes hold 6 and 4 of a limit of 10 all the time. One moves between the replicas.
	hold := func(s *series.Service, node string, requests, used int64) {
		places := wire.Measure{Policy: []byte("places"), Busy: requests * 5000, Used: used}
		gone := wire.Measure{Policy: []byte("gone"), Busy: 1e6, Used: 500}
		s.Measured(measured(node, 5*quota.Second, places, gone), func(name string) bool { return name == "places" })
	}
	w.pass(7 * time.Second)
	for n := range 11 {
		hold([]*series.Service{one, other}[n%2], "edge-1", 6, 60)
		hold(other, "edge-2", 4, int64(100-n))
		w.pass(5 * time.Second)
	}
	w.pass(15 * time.Second)
	for _, s := range w.all {
		// The first report, at 12:00:10, is about the slot before.
		w.see(s, hour(series.ByPolicy, series.InFlight, series.Utilisation), 9,
			"places utilisation 100: 0 100 98 96 94 92 90 0 0\nplaces in_flight 6.875: 5 10 10 10 10 10 0 0 0\n")
		w.see(s, hour(series.ByNode, series.InFlight), 9,
			"edge-1 in_flight 4.125: 3 6 6 6 6 6 0 0 0\nedge-2 in_flight 2.75: 2 4 4 4 4 4 0 0 0\n")
		w.see(s, hour(series.ByAll, series.InFlight), 4, " in_flight 6.875: 10 0 0 0\n")
		q := hour(series.ByPolicy, series.InFlight, series.Utilisation)
		q.Step = time.Minute
		w.see(s, q, 2, "places utilisation 100: 100 90\nplaces in_flight 6.875: 9.167 0\n")
	}
}

// A slot never has more in flight than there was, whenever reports of different lengths come.
func TestInFlightIsNeverMoreThanThereWas(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 1))
	for range 20 {
		w := newWorld(t)
		s, last := w.replica("one"), w.now
		for end := last.Add(10 * time.Minute); w.now.Before(end); {
			next := w.now.Add(time.Duration(1+random.IntN(8000)) * time.Millisecond)
			for ; w.now.Before(next); w.now = w.now.Add(time.Duration(1+random.IntN(500)) * time.Millisecond) {
				if random.IntN(10) == 0 {
					if err := s.Tick(t.Context()); err != nil {
						t.Fatal(err)
					}
				}
			}
			covers := w.now.Sub(last)
			seven := wire.Measure{Policy: []byte("a"), Busy: 7 * covers.Milliseconds()}
			s.Measured(measured("n", quota.Span(covers), seven), always)
			last = w.now
		}
		if err := s.Tick(t.Context()); err != nil {
			t.Fatal(err)
		}
		for _, v := range s.Read(hour(series.ByPolicy, series.InFlight)).Series[0].Values {
			if v != nil && *v > 7.02 { // A report is rounded by hundredths of a second.
				t.Fatalf("%v were in flight, there were 7", *v)
			}
		}
	}
}

// The gauge of how full limits are has the highest value that any replica heard of the last half
// minute.
func TestTheFullestBucketLately(t *testing.T) {
	w := newWorld(t)
	one, other := w.replica("one"), w.replica("other")
	full := func(s *series.Service, node, policy string, percent int64) {
		s.Measured(measured(node, 0, wire.Measure{Policy: []byte(policy), Used: percent}), always)
	}
	full(one, "n", "a", 40)
	full(other, "m", "a", 70)
	full(other, "m", "b", 100)
	w.pass(10 * time.Second)
	for _, s := range w.all {
		if got, want := s.Fullest(), (map[string]float64{"a": 70, "b": 100}); !maps.Equal(got, want) {
			t.Errorf("%v, want %v", got, want)
		}
	}
	w.pass(30 * time.Second)
	full(one, "n", "a", 30)
	w.pass(10 * time.Second)
	if got, want := other.Fullest(), (map[string]float64{"a": 30, "b": 0}); !maps.Equal(got, want) {
		t.Errorf("forty seconds later %v, want %v", got, want)
	}
}

// Refusals that candidates and policies in shadow would have made are counted like refusals.
func TestCandidatesCount(t *testing.T) {
	w := newWorld(t)
	one, other := w.replica("one"), w.replica("other")
	for n, s := range w.all {
		counted := wire.Measure{Policy: []byte("a"), CandidateRefused: int64(n + 3), ShadowRefused: 1,
			ShadowUndetermined: 2, CandidateUndetermined: int64(n)}
		s.Measured(measured("n", 0, counted), always)
	}
	one.Tried("a", "rls", true, false)
	other.Tried("a", "rls", false, false)
	one.Tried("a", "rls", true, true)
	other.Tried("a", "rls", false, true)
	w.pass(10 * time.Second)
	for _, s := range []*series.Service{one, other} {
		w.see(s, hour(series.ByPolicy, series.CandidateRefused, series.ShadowRefused, series.Refused), 2,
			"a candidate_refused 8: 8 0\na shadow_refused 3: 3 0\na refused 0: 0 0\n")
		w.see(s, hour(series.ByPolicy, series.CandidateUndetermined, series.ShadowUndetermined), 2,
			"a shadow_undetermined 5: 5 0\na candidate_undetermined 2: 2 0\n")
		w.see(s, hour(series.ByNode, series.CandidateRefused), 2,
			"n candidate_refused 7: 7 0\nrls candidate_refused 1: 1 0\n")
	}
	if now := one.Compare(series.CandidateRefused, 5).Policies; len(now) != 1 || now[0].Now != 8 {
		t.Errorf("now there are %+v", now)
	}
}

// A policy without a figure of a trial has no line of it unless it is named: most policies are in
// no trial. If a policy has such a figure, the requests whose outcome is unknown are beside it.
func TestOnlyWhatIsTriedHasLinesOfTrials(t *testing.T) {
	w := newWorld(t)
	s := w.replica("one")
	s.Tried("a", "n", false, false)
	s.Tried("c", "n", true, true)
	s.Measured(measured("n", 0, wire.Measure{Policy: []byte("b"), Used: 7}), always)
	w.pass(10 * time.Second)
	trials := []series.Outcome{series.ShadowRefused, series.ShadowUndetermined, series.CandidateRefused,
		series.CandidateUndetermined}
	w.see(s, hour(series.ByPolicy, trials...), 2, "c candidate_undetermined 1: 1 0\na shadow_refused 1: 1 0\n"+
		"c candidate_refused 0: 0 0\na shadow_undetermined 0: 0 0\n")
	named := hour(series.ByPolicy, series.ShadowRefused)
	named.Names = []string{"b"}
	w.see(s, named, 2, "b shadow_refused 0: 0 0\n")
}

func TestStepsAddUp(t *testing.T) {
	w, set := newWorld(t), sets("a")
	s := w.replica("one")
	w.pass(5 * time.Second)
	for n := range 36 { // Ten seconds each, from 12:00:05 on.
		s.Heard(set, refused("n", 0, int64(n+1)))
		w.pass(10 * time.Second)
	}
	q := hour(series.ByPolicy, series.Refused)
	q.Step = time.Minute
	w.see(s, q, 8, "a refused 666: ? 21 57 93 129 165 201 0\n")
	day := q
	day.Kind, day.Step, day.Range = series.Coarse, 5*time.Minute, 24*time.Hour
	w.see(s, day, 3, "a refused 666: ? 465 201\n")
	if a := s.Read(day); !a.Complete || !a.From.Equal(w.now.Truncate(5*time.Minute).Add(5*time.Minute-24*time.Hour)) ||
		a.Until.Sub(a.From) != 24*time.Hour || len(a.Series[0].Values) != 288 {
		t.Errorf("%v to %v, complete %v", a.From, a.Until, a.Complete)
	}
	// The hour forgets first, then the day.
	w.pass(61 * time.Minute)
	w.see(s, q, 1, "a refused 0: 0\n")
	w.see(s, day, 1, "a refused 666: 0\n")
	w.pass(25 * time.Hour)
	w.see(s, day, 1, "")
}

// A replica sees reports that it gets while the store is away at once, and all other replicas see
// them afterwards.
func TestTheStoreIsAway(t *testing.T) {
	w, set := newWorld(t), sets("a")
	one, other := w.replica("one"), w.replica("other")
	one.Heard(set, refused("n", 0, 1))
	w.pass(10 * time.Second)
	w.store.away = true
	one.Heard(set, refused("n", 0, 2))
	other.Heard(set, refused("n", 0, 4))
	w.pass(20 * time.Second)
	all := hour(series.ByPolicy, series.Refused)
	w.see(one, all, 4, "a refused 3: 1 2 0 0\n")
	w.see(other, all, 4, "a refused 5: 1 4 0 0\n")
	if one.Read(all).Complete || one.Compare(series.Refused, 9).Complete {
		t.Error("complete without the store")
	}
	w.store.away = false
	w.pass(5 * time.Second)
	// Replicas that read before another put its slots see them with the next reading of the hour.
	w.pass(5 * time.Minute)
	for _, s := range w.all {
		w.see(s, hour(series.ByAll, series.Refused), 1, " refused 7: 0\n")
		if !s.Read(all).Complete {
			t.Error("not complete with the store")
		}
	}
}

func TestNowIsCompared(t *testing.T) {
	w, set := newWorld(t), sets("a", "b", "c")
	s := w.replica("one")
	n := func(of uint32, n int64) { s.Heard(set, refused("n", of, n)) }
	w.pass(5 * time.Second)
	n(0, 100) // At 12:00:05, a day ago.
	n(2, 1)
	w.pass(23*time.Hour - 5*time.Second)
	n(0, 10) // At 11:00:00, an hour ago.
	w.pass(time.Hour)
	n(1, 7) // At 12:00:00.
	w.pass(4*time.Minute + 55*time.Second)
	n(1, 50) // The step under way is not compared.
	w.pass(5 * time.Second)
	// The last five minutes are those from 12:00:00 on, since the step that began then has ended.
	got := s.Compare(series.Refused, 9)
	i := func(n int64) *int64 { return &n }
	want := series.Comparison{Until: w.now, Complete: true,
		All: series.Change{Now: 57, HourAgo: i(10), DayAgo: i(101)},
		Policies: []series.Change{
			{Policy: "b", Now: 57, HourAgo: i(0), DayAgo: i(0)},
			{Policy: "a", Now: 0, HourAgo: i(10), DayAgo: i(100)},
			{Policy: "c", Now: 0, HourAgo: i(0), DayAgo: i(1)},
		}}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %s", changes(got))
	}
	fresh := newWorld(t).replica("fresh").Compare(series.Refused, 9)
	if fresh.All.HourAgo != nil || fresh.All.DayAgo != nil || len(fresh.Policies) != 0 {
		t.Errorf("a fresh history knows %s", changes(fresh))
	}
}

func changes(c series.Comparison) (lines string) {
	for _, one := range append([]series.Change{c.All}, c.Policies...) {
		lines += fmt.Sprintf("%q %d", one.Policy, one.Now)
		for _, n := range []*int64{one.HourAgo, one.DayAgo} {
			if n != nil {
				lines += fmt.Sprintf(" %d", *n)
			} else {
				lines += " ?"
			}
		}
		lines += "\n"
	}
	return lines
}

// A damaged slot of a replica counts nothing, and does no harm.
func TestDamagedSlots(t *testing.T) {
	w := newWorld(t)
	s := w.replica("one")
	s.Heard(sets("a"), refused("n", 0, 3))
	w.store.slots[series.Fine.At(w.now)] = map[string][]byte{
		"x": []byte("{"), "y": []byte(`{"policies":{"a":null,"b":[1]},"nodes":null}`), "z": []byte(`{"all":[1,2,3,4]}`),
	}
	if err := s.Tick(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.see(s, hour(series.ByPolicy, series.Refused), 1, "a refused 3: 3\nb refused 1: 1\n")
}

// Names that nodes invent are bounded; their counts are in the sum of all nodes.
func TestNamesAreBounded(t *testing.T) {
	w := newWorld(t)
	s := w.replica("one")
	for n := range 1500 {
		s.Heard(sets("a"), refused(fmt.Sprint("node ", n), 0, 1))
	}
	w.pass(5 * time.Second)
	q := hour(series.ByNode, series.Refused)
	q.Most = 5000
	if n := len(s.Read(q).Series); n != 1000 {
		t.Errorf("%d nodes are kept, want 1000", n)
	}
	w.see(s, hour(series.ByAll, series.Refused), 1, " refused 1500: 1500\n")
}

// heap returns the used memory after a collection, in bytes.
func heap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// reportAll has something of every outcome of a policy come from a node.
func reportAll(s *series.Service, set *policies.Compiled, i int, policy, node string, covers quota.Span) {
	s.Heard(set, refused(node, uint32(i), 1))
	s.Heard(set, asked(node, uint32(i), 16))
	s.Granted(policy, 5, 0)
	s.Measured(measured(node, covers, wire.Measure{Policy: []byte(policy), CandidateRefused: 2, ShadowRefused: 3,
		Busy: 4000, Used: 50, ShadowUndetermined: 1, CandidateUndetermined: 1}), always)
}

// All lines that there may be, with every outcome, are within 80 MB.
func TestMemoryOfAllLines(t *testing.T) {
	w := newWorld(t)
	before := heap()
	names := make([]string, 2500)
	for i := range names {
		names[i] = fmt.Sprintf("policy-%04d", i)
	}
	set, s := sets(names...), w.replica("one")
	for i, name := range names {
		reportAll(s, set, i, name, fmt.Sprintf("node-%04d.some.zone.example", i), 0)
	}
	w.pass(series.Every)
	w.store.slots = nil // It is not this replica's.
	used := heap() - before
	t.Logf("%.1f MB", float64(used)/(1<<20))
	if used > 80<<20 {
		t.Errorf("%d bytes are used", used)
	}
	all := hour(series.ByPolicy, series.Outcomes...)
	all.Most = 1 << 20
	if n := len(s.Read(all).Series); n != 9*2000 {
		t.Errorf("%d series of policies, want those of 2000", n)
	}
}

// The bar: 24 hours of 200 policies and 100 nodes are within 64 MB.
func TestMemoryOfADay(t *testing.T) {
	w := newWorld(t)
	before := heap()
	names := make([]string, 200)
	for i := range names {
		names[i] = fmt.Sprintf("policy-%03d-with-a-name-of-some-length", i)
	}
	set, s := sets(names...), w.replica("one")
	report := func() {
		for i := range names {
			reportAll(s, set, i, names[i], fmt.Sprintf("node-%03d.some.zone.example", i%100), 5*quota.Second)
		}
	}
	random := rand.New(rand.NewPCG(8, 9))
	for n := range 100_000 {
		s.Used(&policy.Policy{Name: names[n%200], Limits: perMinute.Limits}, int64(quota.Minute), bucketOf(random),
			random.Int64N(1e6))
	}
	callers := series.Callers.At(w.now)
	report()
	w.pass(5*time.Minute + 20*time.Second)
	report()
	w.pass(series.Every)
	present := w.store.slots[series.Fine.At(w.now)]
	for _, kind := range []series.Kind{series.Fine, series.Coarse} {
		for n := range kind.Kept() {
			w.store.slots[series.Slot{Kind: kind, Number: kind.At(w.now).Number - n}] = present
		}
	}
	for n := range int64(12) {
		w.store.slots[series.Slot{Kind: series.Callers, Number: callers.Number - n}] = w.store.slots[callers]
	}
	w.all = nil
	s = w.replica("later") // It reads all that is kept.
	w.pass(series.Every)
	for range 80 { // And it counts on while the store is away.
		w.store.away = true
		report()
		w.now = w.now.Add(10*time.Second - series.Every)
		w.pass(series.Every)
	}
	w.store.slots = nil // It is not this replica's.
	used := heap() - before
	t.Logf("%.1f MB", float64(used)/(1<<20))
	if used > 64<<20 {
		t.Errorf("%d bytes are used", used)
	}
	day := series.Query{By: series.ByPolicy, Outcomes: series.Outcomes, Kind: series.Coarse, Step: 5 * time.Minute,
		Range: 24 * time.Hour, Most: 2000}
	if d := s.Distribution(names[7], time.Minute, 0, nil); d.Sampled < 12*50 {
		t.Errorf("%d callers are sampled", d.Sampled)
	}
	all := s.Read(day).Series
	if len(all) != 1800 || all[0].Values[0] == nil || *all[0].Values[0] != 16 {
		t.Errorf("%d series of policies, want 1800 that are full", len(all))
	}
}
