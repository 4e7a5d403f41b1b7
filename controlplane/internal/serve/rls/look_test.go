package rls_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/weir-proxy/weir/controlplane/internal/serve/calls"
	"github.com/weir-proxy/weir/controlplane/internal/serve/rls"
	"github.com/weir-proxy/weir/shared/wire"
)

// patience is how long a call under a penalty may take in all: half of the time that Envoy waits by
// default.
const patience = 10 * time.Millisecond

// lagging answers like inTurn, each request after its own delay. If the delay exceeds the caller's
// patience, it returns an error.
type lagging struct {
	inTurn
	lag time.Duration

	counts sync.Mutex
	// requests is how many there were, most of how many buckets at once, open of how many now.
	requests, most, open int
}

func (l *lagging) Grant(ctx context.Context, req wire.LeaseRequest) (wire.LeaseReply, error) {
	l.counts.Lock()
	lag := l.lag
	l.requests++
	l.open += len(req.Items)
	l.most = max(l.most, l.open)
	l.counts.Unlock()
	defer func() {
		l.counts.Lock()
		l.open -= len(req.Items)
		l.counts.Unlock()
	}()
	if lag == 0 {
		return l.inTurn.Grant(ctx, req)
	}
	select {
	case <-time.After(lag):
		return l.inTurn.Grant(ctx, req)
	case <-ctx.Done():
		return wire.LeaseReply{}, ctx.Err()
	}
}

// lagBy sets the delay of all further requests, and forgets the counted requests.
func (l *lagging) lagBy(lag time.Duration) {
	l.counts.Lock()
	defer l.counts.Unlock()
	l.lag, l.requests, l.most = lag, 0, l.open
}

func (l *lagging) seen() (requests, most int) {
	l.counts.Lock()
	defer l.counts.Unlock()
	return l.requests, l.most
}

// lag gives a world in a bubble a store that lags.
func (w *world) lag() *lagging {
	w.now = time.Now()
	w.withPenalties()
	l := &lagging{inTurn: inTurn{next: w.plane}}
	w.service = rls.New(rls.Config{
		Leases: l, View: func() *calls.View { return w.view }, Penalties: w.penalties, Now: time.Now,
	})
	w.service.WithMetadata()
	return l
}

// sleep has time go on, for the world too.
func (w *world) sleep(d time.Duration) {
	time.Sleep(d)
	synctest.Wait() // Until then the store may read it.
	w.now = time.Now()
}

// answer returns the answer to a caller's call, its source, and the time that it took.
func (w *world) answer(caller, domain string) (answer, source string, took time.Duration) {
	begun := time.Now()
	out, err := w.service.ShouldRateLimit(w.t.Context(), request(domain, "header:x-api-key="+caller+"|user=u"))
	if err != nil {
		return err.Error(), "", time.Since(begun)
	}
	fields := out.DynamicMetadata.GetFields()
	answer = fields["reason"].GetStringValue()
	if fields["remaining"] != nil {
		answer += " known"
	}
	return answer, fields["source"].GetStringValue(), time.Since(begun)
}

// punish brings callers a penalty.
func (w *world) punish(callers ...string) {
	w.t.Helper()
	for _, one := range callers {
		for range 4 {
			w.answer(one, "a")
		}
		if answer, _, _ := w.answer(one, "a"); !strings.HasPrefix(answer, "penalty") {
			w.t.Fatalf("%s is under no penalty: %s", one, answer)
		}
	}
}

// A flood of calls under a penalty waits for a slow store no longer than an Envoy does. It asks the
// store once, and takes no place from the calls of other callers, which the store decides. Later
// calls show an answer that came too late.
func TestAFloodUnderAPenaltyWaitsForNoSlowStore(t *testing.T) {
	const flood, lag = 3000, 30 * time.Millisecond
	synctest.Test(t, func(t *testing.T) {
		w := begin(t, punished("", ""))
		store := w.lag()
		w.punish("eve")
		w.sleep(2 * time.Second)
		store.lagBy(lag)
		var all sync.WaitGroup
		for range flood {
			all.Go(func() {
				if answer, _, took := w.answer("eve", "a"); !strings.HasPrefix(answer, "penalty") || took > patience {
					t.Errorf("eve: %q after %s", answer, took)
				}
			})
		}
		time.Sleep(time.Millisecond)
		all.Go(func() {
			if answer, source, _ := w.answer("bob", "b"); answer != " known" || source != "central" {
				t.Errorf("bob: %q by %s, want the store's answer", answer, source)
			}
		})
		all.Wait()
		if n, _ := store.seen(); n != 2 {
			t.Errorf("%d requests, want one look and one for bob", n)
		}
		w.sleep(lag)
		answer, _, took := w.answer("eve", "a")
		if n, _ := store.seen(); answer != "penalty known" || took > 0 || n != 2 {
			t.Errorf("eve, later: %q after %s, with %d requests", answer, took, n)
		}
	})
}

// While the store hangs, a caller under a penalty waits for it once a second, for some
// milliseconds, and many such callers have few requests there at once.
func TestAHangingStoreIsLookedAtSeldom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := begin(t, punished("", ""))
		store := w.lag()
		var callers []string
		for i := range 2 * rls.LooksAtOnce {
			callers = append(callers, fmt.Sprint("eve", i))
		}
		w.punish(callers...)
		w.sleep(2 * time.Second)
		store.lagBy(time.Hour)
		const calls = 300
		waited := time.Duration(0)
		for range calls {
			answer, _, took := w.answer(callers[0], "a")
			if answer != "penalty" || took > patience {
				t.Fatalf("%q after %s", answer, took)
			}
			waited += took
			w.sleep(10*time.Millisecond - took)
		}
		if n, _ := store.seen(); n < 3 || n > 4 || waited > 4*patience {
			t.Errorf("%d calls in 3 s made %d requests and waited for %s", calls, n, waited)
		}
		w.sleep(2 * time.Second)
		store.lagBy(time.Hour)
		var all sync.WaitGroup
		for _, one := range callers {
			all.Go(func() {
				if answer, _, took := w.answer(one, "a"); answer != "penalty" || took > patience {
					t.Errorf("%q after %s", answer, took)
				}
			})
		}
		all.Wait()
		if _, most := store.seen(); most != rls.LooksAtOnce {
			t.Errorf("%d buckets at once, want %d", most, rls.LooksAtOnce)
		}
		w.sleep(2 * time.Second)
		store.lagBy(0)
		if answer, _, _ := w.answer(callers[0], "a"); answer != "penalty known" {
			t.Errorf("when the store answers again: %q", answer)
		}
		synctest.Wait()
		if shares, others := w.service.Held(); shares+others != 0 {
			t.Errorf("%d buckets and %d places are held", shares, others)
		}
	})
}

// A caller that goes away takes nothing from the callers that stay.
func TestACallerThatGoesAwayHidesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := begin(t, punished("", ""))
		store := w.lag()
		w.punish("eve")
		w.sleep(2 * time.Second)
		store.lagBy(2 * time.Millisecond)
		gone, leave := context.WithCancel(t.Context())
		time.AfterFunc(time.Millisecond, leave)
		begun := time.Now()
		_, _ = w.service.ShouldRateLimit(gone, request("a", "header:x-api-key=eve|user=u"))
		if took := time.Since(begun); took > time.Millisecond {
			t.Errorf("the call of one that is gone took %s", took)
		}
		if answer, _, _ := w.answer("eve", "a"); answer != "penalty known" {
			t.Errorf("after it: %q", answer)
		}
	})
}

// With a healthy store the wait is true at each call: it ends at one instant, however old the
// remembered answer is, and the store is asked once a second. A request with a different cost is a
// different question, and the number of such questions a second is small.
func TestTheWaitOfAPenaltyIsTrueBetweenLooks(t *testing.T) {
	document := strings.Replace(punished("", ""), "quota: 1, window: 10s", "quota: 100, window: 1000s", 1)
	w := begin(t, document)
	w.withPenalties()
	hits := func(n uint64) (reason string, passes time.Duration) {
		in := request("a", "header:x-api-key=eve|user=u")
		in.Descriptors[0].HitsAddend = wrapperspb.UInt64(n)
		fields := w.ask(in).DynamicMetadata.GetFields()
		wait := time.Duration(fields["retry_us"].GetNumberValue()) * time.Microsecond
		return fields["reason"].GetStringValue(), w.now.Add(wait).Sub(start)
	}
	hits(100)
	var first time.Duration
	for range 3 {
		_, first = hits(90)
	}
	before := w.grants.Load()
	for _, c := range []struct {
		at   time.Duration
		hits uint64
		asks int64
	}{
		{0, 90, 1}, {0, 90, 0}, {400, 90, 0}, {999, 90, 0}, {1000, 90, 1}, {1500, 80, 1}, {1500, 70, 1},
		{1900, 80, 0}, {1900, 5, 1}, {1900, 4, 0}, {1999, 90, 0}, {2000, 4, 1},
	} {
		w.now = start.Add(c.at * time.Millisecond)
		want := max(first-time.Duration(90-c.hits)*10*time.Second, time.Minute)
		reason, passes := hits(c.hits)
		if reason != "penalty" || passes != want {
			t.Errorf("%d hits at %d ms: %s until %s, want %s", c.hits, c.at, reason, passes, want)
		}
		if got := w.grants.Load() - before; got != c.asks {
			t.Errorf("%d hits at %d ms: asked %d times, want %d", c.hits, c.at, got, c.asks)
		}
		before = w.grants.Load()
	}
	w.now = start.Add(first - time.Microsecond)
	if reason, _ := hits(90); reason != "quota" {
		t.Errorf("before the end: %q", reason)
	}
	w.now = start.Add(first)
	if reason, _ := hits(90); reason != "" {
		t.Errorf("at the end: %q", reason)
	}
}

// A flood of callers under a penalty takes bounded memory, and is refused without a look then.
func TestLooksAreBounded(t *testing.T) {
	w := begin(t, punished("", ""))
	w.withPenalties()
	caller := func(i int) string { return fmt.Sprint("eve", i) }
	for i := range rls.MaxLookers + 10 {
		for range 4 {
			w.call(caller(i), "a")
		}
	}
	flood := func() (asked int64) {
		before := w.grants.Load()
		for i := range rls.MaxLookers + 10 {
			if got := w.call(caller(i), "a"); !strings.HasPrefix(got, "penalty") {
				t.Fatal(got)
			}
		}
		return w.grants.Load() - before
	}
	for range 2 {
		if asked, held := flood(), w.service.Lookers(); asked != rls.MaxLookers || held != rls.MaxLookers {
			t.Errorf("asked %d times and holds %d, want %d", asked, held, rls.MaxLookers)
		}
		if asked := flood(); asked != 0 {
			t.Errorf("asked %d times within a second", asked)
		}
		w.now = w.now.Add(1100 * time.Millisecond)
	}
}
