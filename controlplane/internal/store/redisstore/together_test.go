package redisstore_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"reflect"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weir-proxy/weir/controlplane/internal/grant/gather"
	"github.com/weir-proxy/weir/controlplane/internal/grant/leases"
	"github.com/weir-proxy/weir/controlplane/internal/ground/breaker"
	"github.com/weir-proxy/weir/controlplane/internal/store/redisstore"
	"github.com/weir-proxy/weir/controlplane/internal/store/storetest"
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/lease"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/test/support/redistest"
)

// answer is the answer to one of several requests.
type answer struct {
	grants []lease.Grant
	err    error
}

// together has requests share one call: they come, one after the other, while another is under way.
// Patience, if not nil, is the context of each.
func together(
	t *testing.T, s *redisstore.Store, requests [][]leases.Item, patience func(int) context.Context,
) []answer {
	t.Helper()
	answers := make([]answer, len(requests))
	var all sync.WaitGroup
	s.WhileCalling(0, func() {
		for i, items := range requests {
			ctx := t.Context()
			if patience != nil {
				ctx = patience(i)
			}
			all.Go(func() { answers[i].grants, answers[i].err = s.Grant(ctx, items) })
			awaitGathered(t, s, i+1)
		}
	})
	all.Wait()
	return answers
}

// want returns an item of the tag 0 that wants `waiting` tokens for requests that wait.
func want(p quota.Params, bucket byte, waiting int64) leases.Item {
	return leases.Item{Bucket: keyhash.Key{0, bucket},
		Ask: lease.Ask{Params: p, Version: 1, Waiting: waiting, Cost: 1, Nodes: 1}}
}

// Requests that share a call are answered as if they came alone, one after the other: groups stay
// apart, and so do tokens and windows, drafts and reports, and buckets that several ask for.
func TestACallForManyAnswersEachAsAlone(t *testing.T) {
	p := still(t)
	windows, err := quota.NewWindows(quota.FixedWindow, 10, quota.Day, 0)
	if err != nil {
		t.Fatal(err)
	}
	windowed := want(p, 3, 4)
	windowed.Ask.Windows = windows
	report := want(p, 4, 0)
	report.Ask.Optimistic, report.Ask.Used = true, 7
	twin := want(p, 5, 3)
	twin.Twin = &lease.Ask{Params: params(t, 1, quota.Day, 5), Version: 2}
	draft := want(p, 5, 2)
	draft.Draft, draft.Twin = true, &lease.Ask{Params: params(t, 1, quota.Day, 9), Version: 1}
	joined := func(items ...leases.Item) []leases.Item {
		for i := range items {
			items[i].Group = 1
		}
		return items
	}
	stale := want(params(t, 1, quota.Day, 30), 1, 1)
	stale.Ask.Version = 0
	requests := [][]leases.Item{
		{want(p, 1, 20)},
		{want(p, 1, 20), windowed},
		joined(want(p, 1, 1), want(p, 2, 1)),
		{want(p, 2, 5)},
		{stale, windowed, report},
		{twin}, {draft}, joined(twin, want(p, 6, 1)), {windowed}, {report},
		joined(want(p, 7, 1), want(p, 8, 100)),
		{want(p, 7, 24), want(p, 8, 24)},
	}
	alone := func(s *redisstore.Store) (answers []answer) {
		for _, items := range requests {
			grants, err := s.Grant(t.Context(), items)
			answers = append(answers, answer{grants, err})
		}
		return answers
	}
	for name, ask := range map[string]func(s *redisstore.Store) []answer{
		"together": func(s *redisstore.Store) []answer { return together(t, s, requests, nil) },
		"again":    alone,
	} {
		one, set := virtual(t, openURL(t, redistest.Start(t).URL(), slog.New(slog.DiscardHandler)))
		set(storetest.Base)
		other, setOther := virtual(t, openURL(t, redistest.Start(t).URL(), slog.New(slog.DiscardHandler)))
		setOther(storetest.Base)
		if got, want := ask(one), alone(other); !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %+v\nalone: %+v", name, got, want)
		}
	}
}

// halves makes requests share a call of which some fail, because Redis has no memory to store their
// grants. It returns an error if the answers are wrong: each request must get the same as alone.
func halves(t *testing.T, server *redistest.Server, s *redisstore.Store) error {
	t.Helper()
	p := still(t)
	if _, err := s.Grant(t.Context(), []leases.Item{want(p, 1, 20)}); err != nil {
		t.Fatal(err)
	}
	refused, look, grant := want(p, 1, 1), want(p, 3, 0), want(p, 2, 1)
	refused.Ask.Cost = 5
	requests := [][]leases.Item{{refused}, {grant}, {refused, look}, {look, grant}, {look, grant}, {look}}
	requests[4][0].Group, requests[4][1].Group = 1, 1
	server.Do("CONFIG", "SET", "maxmemory", "1")
	defer server.Do("CONFIG", "SET", "maxmemory", "0")
	answers := together(t, s, requests, nil)
	for i, failing := range []bool{false, true, false, true, true, false} {
		switch a := answers[i]; {
		case failing && (a.err == nil || gather.IsShared(a.err) || !redis.HasErrorPrefix(a.err, "OOM")):
			return fmt.Errorf("request %d got %v, want its own error", i, a.err)
		case failing:
		case a.err != nil:
			return fmt.Errorf("request %d has nothing to do with the failures, but got %w", i, a.err)
		case len(a.grants) != len(requests[i]):
			return fmt.Errorf("request %d got %+v", i, a.grants)
		}
	}
	var partial *leases.Partial
	switch of := answers[3]; {
	case !errors.As(of.err, &partial) || partial.Away[0] != 0 || partial.Away[1] == 0 || of.grants[0].Level != plenty:
		return fmt.Errorf("a group beside one that fails got %+v, want its answer", of)
	case errors.As(answers[4].err, &partial):
		return fmt.Errorf("one group was answered in part: %+v", answers[4])
	}
	first, third, last := answers[0].grants[0], answers[2].grants, answers[5].grants[0]
	if first.Waiting != 0 || first.Level != 4 || first.NotBefore == 0 || third[0].Level != 4 ||
		third[1].Level != plenty || last.Level != plenty {
		return fmt.Errorf("the answers are %+v, %+v and %+v", first, third, last)
	}
	return nil
}

// A request that fails within the script fails alone: the requests before and after it in the call
// get their grants.
func TestAFailureWithinACallIsOfItsRequest(t *testing.T) {
	server := redistest.Start(t)
	if err := halves(t, server, open(t, server)); err != nil {
		t.Error(err)
	}
}

// The test above notices a script that fails as a whole, and answers that reach the wrong requests.
func TestPlantedBugsOfHalfAnsweredCalls(t *testing.T) {
	for name, plant := range map[string]func(*redisstore.Store) bool{
		"one failure fails all": func(s *redisstore.Store) bool {
			return s.SpoilGrant("local fine, why = pcall(answer_group, first, last)",
				"local fine, why = true, answer_group(first, last)")
		},
		"a failure moves the answers of other requests": func(s *redisstore.Store) bool {
			return s.SpoilGrant("for i = (first - 1) * VALUES + 1, last * VALUES do",
				"for i = (first - 2) * VALUES + 1, last * VALUES do")
		},
		"an error is taken for an answer": func(s *redisstore.Store) bool {
			return s.SpoilGrant("reply[(first - 1) * VALUES + 1] = why", "")
		},
	} {
		t.Run(name, func(t *testing.T) {
			server := redistest.Start(t)
			s := open(t, server)
			if !plant(s) {
				t.Fatal("the script does not have the text once")
			}
			if halves(t, server, s) == nil {
				t.Error("not noticed")
			}
		})
	}
}

// A caller who leaves before the call does is charged nothing, and the others do not notice.
func TestCallersLeaveACall(t *testing.T) {
	s := open(t, redistest.Start(t))
	p := still(t)
	gone, leave := context.WithCancel(t.Context())
	answers := make([]answer, 3)
	var all sync.WaitGroup
	s.WhileCalling(0, func() {
		for i, ctx := range []context.Context{t.Context(), gone, t.Context()} {
			all.Go(func() { answers[i].grants, answers[i].err = s.Grant(ctx, []leases.Item{want(p, 1, int64(5+i))}) })
			awaitGathered(t, s, i+1)
		}
		leave()
		awaitGathered(t, s, 2)
	})
	all.Wait()
	if answers[0].err != nil || answers[2].err != nil || !errors.Is(answers[1].err, context.Canceled) {
		t.Fatalf("%+v", answers)
	}
	left := min(answers[0].grants[0].Level, answers[2].grants[0].Level)
	if left != plenty-5-7 {
		t.Errorf("%d tokens are left, want %d", left, plenty-5-7)
	}
}

// A call that is lost is one failure of the store for the breakers, however many requests shared
// it.
func TestALostCallCountsOnce(t *testing.T) {
	server := redistest.Start(t)
	s := open(t, server)
	p := still(t)
	var requests [][]leases.Item
	for range 4 * breaker.Tolerated {
		requests = append(requests, []leases.Item{want(p, 1, 1)})
	}
	patience, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	first := true
	answers := together(t, s, requests, func(int) context.Context {
		if first {
			server.Pause()
			first = false
		}
		return patience
	})
	server.Resume()
	own := slices.DeleteFunc(answers, func(a answer) bool { return gather.IsShared(a.err) })
	if len(own) != 1 || own[0].err == nil {
		t.Errorf("%d failures of one call: %+v", len(own), own)
	}
}

// The subjects of a call are noted, for metrics.
func TestCallsAreNoted(t *testing.T) {
	var mu sync.Mutex
	var sizes []int
	note := redisstore.Calls(func(buckets int) {
		mu.Lock()
		defer mu.Unlock()
		sizes = append(sizes, buckets)
	})
	s := found(t, openURL(t, redistest.Start(t).URL(), slog.New(slog.DiscardHandler), note))
	p := still(t)
	together(t, s, [][]leases.Item{{want(p, 1, 1)}, {want(p, 1, 1), want(p, 2, 1)}, {want(p, 3, 1)}}, nil)
	if _, err := s.Grant(t.Context(), []leases.Item{want(p, 1, 1)}); err != nil || fmt.Sprint(sizes) != "[4 1]" {
		t.Errorf("calls about %v buckets, %v", sizes, err)
	}
}

// A call has fewer than twice as many buckets as one request may have: a full line leaves though a
// call is under way.
func TestCallsAreBounded(t *testing.T) {
	sizes := make(chan int, 10)
	s := found(t, openURL(t, redistest.Start(t).URL(), slog.New(slog.DiscardHandler),
		redisstore.Calls(func(buckets int) { sizes <- buckets })))
	var most []leases.Item
	for i := range byte(64) {
		most = append(most, want(still(t), i, 1))
	}
	var all sync.WaitGroup
	s.WhileCalling(0, func() {
		for _, items := range [][]leases.Item{most[1:], most} {
			all.Go(func() {
				if grants, err := s.Grant(t.Context(), items); err != nil || len(grants) != len(items) {
					t.Errorf("%d grants, %v", len(grants), err)
				}
			})
			if len(items) < len(most) {
				awaitGathered(t, s, 1)
			}
		}
		all.Wait()
	})
	if size := <-sizes; size != 127 || len(sizes) > 0 {
		t.Errorf("a call has %d buckets", size)
	}
}

// awaitGathered waits until n requests wait for the next call.
func awaitGathered(t *testing.T, s *redisstore.Store, n int) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); s.Gathered(0) != n; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d requests wait, not %d", s.Gathered(0), n)
		}
	}
}

// afterFailover returns the answers to two requests that share a call once another server has the
// address. The open connections still lead to the old server, which is its replica now. recovered
// reports whether the next requests get their grants.
func afterFailover(t *testing.T, plant func(*redisstore.Store)) (first []answer, recovered bool) {
	t.Helper()
	old, next := redistest.Start(t), redistest.Start(t)
	found(t, openURL(t, next.URL(), slog.New(slog.DiscardHandler)))
	w := startWay(t, old.Addr())
	s := found(t, openURL(t, "redis://"+w.addr()+"?pool_size=4", slog.New(slog.DiscardHandler)))
	plant(s)
	requests := [][]leases.Item{{want(still(t), 1, 1)}, {want(still(t), 2, 1)}}
	for i, a := range together(t, s, requests, nil) {
		if a.err != nil || a.grants[0].Waiting != 1 {
			t.Fatalf("request %d: %+v", i, a)
		}
	}
	host, port, err := net.SplitHostPort(next.Addr())
	if err != nil {
		t.Fatal(err)
	}
	old.Do("REPLICAOF", host, port)
	w.redirect(next.Addr())
	first = together(t, s, requests, nil)
	for range 8 { // Each of the few connections may have to find out.
		if grants, err := s.Grant(t.Context(), requests[0]); err == nil {
			return first, grants[0].Waiting == 1
		}
	}
	return first, false
}

// A server that turns out to be a replica now fails the whole call, as one failure, and its
// connection is not used again: the address may lead to the new primary.
func TestAReplicaFailsTheCallAndLosesTheConnection(t *testing.T) {
	first, recovered := afterFailover(t, func(*redisstore.Store) {})
	own := 0
	for i, a := range first {
		if a.err == nil || !redis.HasErrorPrefix(a.err, "READONLY") {
			t.Errorf("request %d got %v from a replica", i, a.err)
		}
		if !gather.IsShared(a.err) {
			own++
		}
	}
	if own != 1 || !recovered {
		t.Errorf("%d failures of one call; recovered: %v", own, recovered)
	}
	spoiled := func(s *redisstore.Store) {
		if !s.SpoilGrant("away = string.sub(why, from)", "") {
			t.Error("the script does not have the text once")
		}
	}
	if _, recovered := afterFailover(t, spoiled); recovered {
		t.Error("a script that keeps it to itself is not noticed")
	}
}
