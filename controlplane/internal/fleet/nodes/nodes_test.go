package nodes_test

import (
	"context"
	"errors"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-proxy/weir/controlplane/internal/fleet/nodes"
)

type store struct {
	count   int64
	err     error
	asked   int
	touched nodes.Node
	touches int
	// has is the noted value of each node. meanwhile, if set, is called once while a node is being
	// noted or counted.
	has       map[string]uint64
	meanwhile func()

	listed   []nodes.Node
	reported map[string]nodes.Reported
	stranger bool // it knows no node
}

func (s *store) Touch(_ context.Context, n nodes.Node) error {
	if meanwhile := s.meanwhile; meanwhile != nil {
		s.meanwhile = nil
		meanwhile()
	}
	s.touches++
	if s.touched = n; s.err == nil {
		if s.has == nil {
			s.has = map[string]uint64{}
		}
		s.has[n.ID] = n.Applied
	}
	return s.err
}

func (s *store) Nodes(context.Context) ([]nodes.Node, error) { return s.listed, s.err }

func (s *store) Report(_ context.Context, key string, r nodes.Reported) (bool, error) {
	if s.reported == nil {
		s.reported = map[string]nodes.Reported{}
	}
	if s.err == nil && !s.stranger {
		s.reported[key] = r
	}
	return !s.stranger, s.err
}

func (s *store) CountNodes(context.Context, time.Duration) (int64, error) {
	s.asked++
	count, err := s.count, s.err
	if meanwhile := s.meanwhile; meanwhile != nil {
		s.meanwhile = nil
		meanwhile()
	}
	return count, err
}

func TestCount(t *testing.T) {
	s, now := &store{}, time.Unix(1000, 0)
	r := nodes.New(s, func() time.Time { return now })
	for i, c := range []struct {
		pass  time.Duration
		count int64
		err   error
		want  int64
		asked int
	}{
		{0, 0, nil, 1, 1}, // no node polls: the asking node counts
		{0, 5, nil, 1, 1}, // within a second the last count holds
		{999 * time.Millisecond, 5, nil, 1, 1},
		{time.Millisecond, 5, nil, 5, 2},
		{time.Second, 0, errors.New("away"), 5, 3}, // the store is away: the last count holds
		{time.Second, 2, nil, 2, 4},
	} {
		now = now.Add(c.pass)
		s.count, s.err = c.count, c.err
		if got := r.Count(t.Context()); got != c.want || s.asked != c.asked {
			t.Errorf("step %d: %d nodes after %d questions, want %d after %d", i, got, s.asked, c.want, c.asked)
		}
	}
}

// A store that has lost its state knows no node until each has polled again. Nodes that have polled
// here lately count even so, and for no longer than other nodes.
func TestALossOfStateTakesNoNodeFromTheCount(t *testing.T) {
	s, now := &store{count: 2}, time.Unix(1000, 0)
	r := nodes.New(s, func() time.Time { return now })
	for _, id := range []string{"a", "b"} {
		if err := r.Touch(t.Context(), nodes.Node{ID: id}); err != nil {
			t.Fatal(err)
		}
	}
	for i, c := range []struct {
		pass        time.Duration
		count, want int64
	}{{0, 2, 2}, {time.Second, 2, 2}, {time.Second, 0, 2}, {time.Second, 1, 2}, {nodes.Counted, 1, 1}} {
		now, s.count = now.Add(c.pass), c.count
		if got := r.Count(t.Context()); i > 0 && got != c.want { // The first one counts new ones twice.
			t.Errorf("step %d: %d nodes, want %d", i, got, c.want)
		}
	}
}

// A node counts from its first poll, also before the store is asked again and while it does not
// answer: a node that takes itself for the only one uses the whole of an optimistic limit.
func TestCountHasNodesThatHaveJustPolled(t *testing.T) {
	s, now := &store{err: errors.New("away")}, time.Unix(1000, 0)
	r := nodes.New(s, func() time.Time { return now })
	count := func(want int64) {
		t.Helper()
		if got := r.Count(t.Context()); got != want {
			t.Errorf("%d nodes, want %d", got, want)
		}
	}
	poll := func(id string) {
		t.Helper()
		s.err = nil
		if err := r.Touch(t.Context(), nodes.Node{ID: id, Boot: "b"}); err != nil {
			t.Fatal(err)
		}
	}
	count(1)
	poll("one")
	count(1)
	poll("two")
	poll("three")
	poll("three")
	count(3)
	now, s.count = now.Add(time.Second), 3
	count(3)
	poll("four")
	count(4)
	now, s.count = now.Add(nodes.Counted), 2
	count(2)
	// A node that polls while the store counts is not lost: it may be in the next count only.
	now, s.meanwhile = now.Add(time.Second), func() { poll("five") }
	count(3)
	count(3)
	now, s.count = now.Add(time.Second), 3
	count(3)
}

// A replica with a door counts among the nodes that share the buckets, as long as it is there, and
// is in no list.
func TestDoorsShareToo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &store{count: 3} // The door among them.
		r := nodes.New(s, time.Now)
		ctx, cancel := context.WithCancel(t.Context())
		go r.Open(ctx)
		synctest.Wait()
		door, touches := s.touched, s.touches
		if !door.Door || r.Count(t.Context()) != 3 {
			t.Fatalf("noted as %+v, %d share", door, r.Count(t.Context()))
		}
		time.Sleep(nodes.Counted / 2)
		synctest.Wait()
		if s.touches == touches || s.touched.Key() != door.Key() {
			t.Errorf("noted %d times, the last time as %+v", s.touches, s.touched)
		}
		cancel()
		synctest.Wait()
		s.count, s.listed = 3, []nodes.Node{s.touched, {ID: "a", Seen: time.Now()}, {ID: "b", Seen: time.Now()}}
		if envoys, doors := r.Fleet(t.Context()); r.Count(t.Context()) != 3 || envoys != 2 || doors != 1 {
			t.Errorf("%d Envoys and %d doors", envoys, doors)
		}
		if all, _ := r.List(t.Context()); len(all) != 2 || all[0].ID != "a" {
			t.Errorf("listed are %+v", all)
		}
		if all := r.Active(t.Context()); len(all) != 2 || all[0].ID != "a" {
			t.Errorf("active are %+v", all)
		}
	})
}

// The texts that a node reports are bounded and printable before they are stored.
func TestTouchCleans(t *testing.T) {
	s := &store{}
	r := nodes.New(s, time.Now)
	long := strings.Repeat("ä", 300)
	if err := r.Touch(t.Context(),
		nodes.Node{ID: "a\x1b[31m\n\x00b\xff", Boot: long, Reason: long, Filter: long, Zone: long}); err != nil {
		t.Fatal(err)
	}
	n := s.touched
	if n.ID != "a?[31m??b?" {
		t.Errorf("id %q", n.ID)
	}
	for name, c := range map[string]struct {
		text string
		max  int
	}{"boot": {n.Boot, 16}, "reason": {n.Reason, 256}, "filter": {n.Filter, 64}, "zone": {n.Zone, 64}} {
		if c.text != long[:c.max] {
			t.Errorf("%s is %q", name, c.text)
		}
	}
}

// While the store is away a replica answers with the reports of nodes to it. Afterwards the store
// learns the newest report.
func TestTheStoreIsAway(t *testing.T) {
	s, now := &store{err: errors.New("away")}, time.Unix(1000, 0)
	r := nodes.New(s, func() time.Time { return now })
	share := nodes.Reported{State: "share", Steps: map[string]string{"api": "share"}}
	deny := nodes.Reported{State: "deny", Steps: map[string]string{"api": "deny"}}
	touch := func(id, boot string) {
		if err := r.Touch(t.Context(), nodes.Node{ID: id, Boot: boot, Applied: 3}); !errors.Is(err, s.err) {
			t.Errorf("%v", err)
		}
	}
	touch("a", "1")
	for _, said := range []nodes.Reported{share, deny} {
		if err := r.Report(t.Context(), "a", "1", said); err == nil {
			t.Error("a store that is away has stored a report")
		}
	}
	now = now.Add(time.Second)
	touch("a", "1")                                           // It says nothing of its state.
	_ = r.Report(t.Context(), "a", "0", share)                // From the process before it, late.
	_ = r.Report(t.Context(), "b\x1b", "7", nodes.Reported{}) // It has not polled here.
	list, complete := r.List(t.Context())
	if complete || len(list) != 3 || list[1].State != "deny" || list[1].Applied != 3 || !list[1].Seen.Equal(now) ||
		list[0].State != "share" || list[2].ID != "b?" {
		t.Fatalf("%v %+v", complete, list)
	}
	s.err, s.listed = nil, []nodes.Node{{ID: "a", Boot: "1", Seen: now}, {ID: "z", Seen: now}}
	list, complete = r.List(t.Context())
	if !complete || len(list) != 2 || list[0].State != "deny" || list[1].State != "" {
		t.Errorf("the store is back: %v %+v", complete, list)
	}
	touch("a", "1")
	if got := s.reported["a\x001"]; !reflect.DeepEqual(got, deny) {
		t.Errorf("the store has learnt %+v", got)
	}
	s.listed[0].Reported = share // Another replica has heard something newer meanwhile.
	if list, _ = r.List(t.Context()); list[0].State != "share" {
		t.Errorf("%+v", list[0])
	}
	s.err = errors.New("away")
	now = now.Add(nodes.Forgotten)
	if list, _ = r.List(t.Context()); len(list) != 0 {
		t.Errorf("after ten minutes %+v", list)
	}
}

// A report of a process that has not polled yet is stored when it polls. If the poll of a node
// could not be noted in time, its state at a later time is noted.
func TestAPollIsNotedLater(t *testing.T) {
	s, now := &store{err: errors.New("busy")}, time.Unix(1000, 0)
	r := nodes.New(s, func() time.Time { now = now.Add(time.Millisecond); return now })
	poll := func(id string, version uint64) error {
		return r.Touch(t.Context(), nodes.Node{ID: id, Boot: "1", Applied: version})
	}
	if poll("a", 1) == nil || poll("b", 1) == nil {
		t.Fatal("a busy store has noted a node")
	}
	ended, end := context.WithCancel(t.Context())
	end()
	r.CatchUp(ended) // It does not go on for ever.
	if poll("a", 1) == nil || poll("b", 1) == nil {
		t.Fatal("a busy store has noted a node")
	}
	s.err = nil
	// While version 1 of a node is on its way to the store, both acknowledge version 2.
	s.meanwhile = func() {
		if err := errors.Join(poll("a", 2), poll("b", 2)); err != nil {
			t.Error(err)
		}
	}
	r.CatchUp(t.Context())
	if s.has["a"] != 2 || s.has["b"] != 2 {
		t.Errorf("the store has %v, want version 2 of both", s.has)
	}
	s.has = nil
	if r.CatchUp(t.Context()); s.has != nil {
		t.Errorf("%v were noted again", s.has)
	}
}

func TestAReportBeforeThePoll(t *testing.T) {
	s := &store{stranger: true}
	r := nodes.New(s, time.Now)
	if err := r.Report(t.Context(), "a", "1", nodes.Reported{State: "share"}); err != nil || len(s.reported) != 0 {
		t.Fatalf("%v, %v", err, s.reported)
	}
	s.stranger = false
	if err := r.Touch(t.Context(), nodes.Node{ID: "a", Boot: "1"}); err != nil ||
		s.reported["a\x001"].State != "share" {
		t.Errorf("%v, %v", err, s.reported)
	}
}

// Nodes that invent names fill no memory; those seen last stay.
func TestMemoryIsBounded(t *testing.T) {
	s, now := &store{err: errors.New("away")}, time.Unix(1000, 0)
	r := nodes.New(s, func() time.Time { return now })
	for i := range 10_050 {
		now = now.Add(time.Millisecond)
		_ = r.Touch(t.Context(), nodes.Node{ID: strconv.Itoa(i)})
	}
	list, _ := r.List(t.Context())
	if len(list) != 10_000 || slices.ContainsFunc(list, func(n nodes.Node) bool { return n.ID == "49" }) {
		t.Errorf("%d nodes", len(list))
	}
}

// Strangers at many addresses fill no memory, and an Envoy that still calls is not lost among them.
func TestRefusalsAreBounded(t *testing.T) {
	now := time.Unix(1000, 0)
	r := nodes.New(&store{}, func() time.Time { return now })
	for i := range 5000 {
		now = now.Add(10 * time.Millisecond)
		r.Refuse(strconv.Itoa(i), "", "a stranger")
		if i%500 == 0 {
			r.Refuse("sick", "envoy-1", "its token has expired")
		}
	}
	list := r.Refusals()
	at := slices.IndexFunc(list, func(one nodes.Refusal) bool { return one.Address == "sick" })
	if len(list) != 1000 || at < 0 || list[at].Calls != 10 || list[at].Node != "envoy-1" || list[0].Address != "4999" {
		t.Errorf("%d, the sick one at %d, %+v first", len(list), at, list[0])
	}
	if now = now.Add(nodes.Counted); r.RefusedNow() != 0 {
		t.Errorf("%d are refused now", r.RefusedNow())
	}
	if now = now.Add(nodes.Forgotten); len(r.Refusals()) != 0 {
		t.Errorf("%d are not forgotten", len(r.Refusals()))
	}
}
