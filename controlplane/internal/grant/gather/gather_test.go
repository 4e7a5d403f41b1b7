package gather_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-proxy/weir/controlplane/internal/grant/gather"
)

const (
	full  = 4
	delay = 2 * time.Millisecond
	// took is how long a call takes.
	took = time.Millisecond
)

var errLost = errors.New("no answer")

// caller is a caller that asks at a time; want is when and with which result it returns.
type caller struct {
	at       time.Duration
	name     string
	size     int
	patience time.Duration // 0 is endless
	want     string
}

// scene is callers at a line whose calls take some time each, and the calls that were made.
type scene struct {
	callers []caller
	// takes is how long the n-th call takes if not took; lost calls end with the deadline.
	takes map[int]time.Duration
	lost  map[int]bool
	calls []string
}

func (s scene) play(t *testing.T) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		var mu sync.Mutex
		var calls []string
		var line gather.Line[string]
		line.Init(full, delay, func(ctx context.Context, together []string) error {
			mu.Lock()
			n := len(calls)
			calls = append(calls, fmt.Sprintf("%v %s", time.Since(begin), strings.Join(together, "+")))
			mu.Unlock()
			if s.lost[n] {
				<-ctx.Done()
				time.Sleep(10 * us) // A caller who gives up at that moment is gone by then.
				return errLost
			}
			time.Sleep(max(took, s.takes[n]))
			return nil
		})
		var all sync.WaitGroup
		for _, c := range s.callers {
			all.Go(func() {
				time.Sleep(c.at)
				ctx, cancel := t.Context(), func() {}
				if c.patience > 0 {
					ctx, cancel = context.WithTimeout(ctx, c.patience)
				}
				defer cancel()
				err := line.Do(ctx, c.name, max(1, c.size))
				got := fmt.Sprint(time.Since(begin))
				if err != nil {
					got += " " + err.Error()
				}
				if gather.IsShared(err) {
					got += ", shared"
				}
				if got != c.want {
					t.Errorf("%s returned at %s, want %s", c.name, got, c.want)
				}
			})
		}
		all.Wait()
		if !slices.Equal(calls, s.calls) {
			t.Errorf("the calls were %q, want %q", calls, s.calls)
		}
	})
}

const us = time.Microsecond

// A caller that finds no call under way asks alone and at once. Callers that come meanwhile go
// together when it ends.
func TestWhoComesMeanwhileGoesTogether(t *testing.T) {
	scene{
		callers: []caller{
			{at: 0, name: "a", want: "1ms"},
			{at: 100 * us, name: "b", want: "2ms"},
			{at: 900 * us, name: "c", want: "2ms"},
			{at: 1100 * us, name: "d", want: "3ms"},
			{at: 5 * time.Millisecond, name: "e", want: "6ms"},
		},
		calls: []string{"0s a", "1ms b+c", "2ms d", "5ms e"},
	}.play(t)
}

// Callers that are ready at the same time go together, also in the first call.
func TestWhoIsReadyGoesTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var calls []int
		var line gather.Line[int]
		line.Init(full, delay, func(_ context.Context, together []int) error {
			calls = append(calls, len(together))
			time.Sleep(took)
			return nil
		})
		line.SetYield(synctest.Wait)
		for _, ready := range []int{1, 3, full + 1} {
			calls = nil
			var all sync.WaitGroup
			for i := range ready {
				all.Go(func() {
					if err := line.Do(t.Context(), i, 1); err != nil {
						t.Error(err)
					}
				})
			}
			all.Wait()
			want := []int{ready}
			if ready > full {
				want = []int{full, ready - full}
			}
			if !slices.Equal(calls, want) {
				t.Errorf("%d were ready, the calls had %v, want %v", ready, calls, want)
			}
		}
	})
}

// A full line leaves at once, and so does a line that has gathered for the delay.
func TestACallDoesNotHoldUpOthersForLong(t *testing.T) {
	scene{
		callers: []caller{
			{at: 0, name: "a", want: "9ms"},
			{at: 100 * us, name: "b", size: 2, want: "1.2ms"},
			{at: 200 * us, name: "c", size: 3, want: "1.2ms"},
			{at: 300 * us, name: "d", want: "3.3ms"},
			{at: 400 * us, name: "e", size: 2, want: "3.3ms"},
			// No call but the slow one is under way, and the delay has passed.
			{at: 4 * time.Millisecond, name: "f", want: "7ms"},
		},
		takes: map[int]time.Duration{0: 9 * time.Millisecond},
		calls: []string{"0s a", "200µs b+c", "2.3ms d+e", "6ms f"},
	}.play(t)
}

// A caller waits as long as its own context allows, whatever those do with whom it shares a call.
// It is not sent if it leaves before the call does.
func TestEachCallerHasItsOwnPatience(t *testing.T) {
	scene{
		callers: []caller{
			{at: 0, name: "a", want: "1ms"},
			{at: 100 * us, name: "b", patience: 300 * us, want: "400µs context deadline exceeded"},
			{at: 200 * us, name: "c", patience: 1200 * us, want: "1.4ms context deadline exceeded"},
			{at: 300 * us, name: "d", patience: 3 * time.Millisecond, want: "2ms"},
		},
		calls: []string{"0s a", "1ms c+d"},
	}.play(t)
	scene{ // The last to wait leaves an empty place.
		callers: []caller{
			{at: 0, name: "a", want: "1ms"},
			{at: 100 * us, name: "b", patience: 300 * us, want: "400µs context deadline exceeded"},
			{at: 2 * time.Millisecond, name: "c", want: "3ms"},
		},
		calls: []string{"0s a", "2ms c"},
	}.play(t)
}

// A lost call ends when the most patient of its callers gives up. It is one failure, however many
// shared it.
func TestALostCallIsOneFailure(t *testing.T) {
	scene{
		callers: []caller{
			{at: 0, name: "a", want: "1ms"},
			{at: 100 * us, name: "b", patience: 3 * time.Millisecond, want: "3.1ms context deadline exceeded"},
			{at: 200 * us, name: "c", patience: 3 * time.Millisecond, want: "3.2ms context deadline exceeded, shared"},
			{at: 300 * us, name: "d", patience: 4 * time.Millisecond, want: "4.3ms context deadline exceeded, shared"},
			// Another call is another failure; one alone is never shared.
			{at: 3500 * us, name: "e", patience: time.Millisecond, want: "4.5ms context deadline exceeded"},
			{at: 9 * time.Millisecond, name: "f", patience: time.Millisecond, want: "10.01ms no answer"},
		},
		lost:  map[int]bool{1: true, 2: true, 3: true},
		calls: []string{"0s a", "1ms b+c+d", "4.31ms e", "9ms f"},
	}.play(t)
}

// Whatever callers do, each item is sent at most once, and an answered item exactly once. A line
// that came to rest makes the next call at once.
func TestEachItemIsSentOnce(t *testing.T) {
	seed := rand.Uint64()
	synctest.Test(t, func(t *testing.T) {
		const callers, each = 50, 40
		var sent [callers * each]atomic.Int32
		var line gather.Line[int]
		line.Init(16, delay, func(ctx context.Context, together []int) error {
			for _, i := range together {
				sent[i].Add(1)
			}
			select {
			case <-time.After(time.Duration(rand.IntN(5000)) * us):
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		})
		var all sync.WaitGroup
		for c := range callers {
			r := rand.New(rand.NewPCG(seed, uint64(c)))
			all.Go(func() {
				for n := range each {
					ctx, cancel := context.WithTimeout(t.Context(), time.Duration(1+r.IntN(8000))*us)
					if r.IntN(4) == 0 {
						time.AfterFunc(time.Duration(r.IntN(4000))*us, cancel)
					}
					i := c*each + n
					err := line.Do(ctx, i, 1+r.IntN(4))
					if count := sent[i].Load(); count > 1 || err == nil && count != 1 {
						t.Errorf("seed %d: item %d was sent %d times, error %v", seed, i, count, err)
					}
					cancel()
					time.Sleep(time.Duration(r.IntN(3000)) * us)
				}
			})
		}
		all.Wait()
		time.Sleep(10 * time.Millisecond) // A call outlives callers who left, but not the last deadline.
		begin := time.Now()
		line.Init(16, delay, func(context.Context, []int) error { return nil })
		if err := line.Do(t.Context(), 0, 1); err != nil || time.Since(begin) > 0 {
			t.Errorf("seed %d: the line is not at rest: %v after %v", seed, err, time.Since(begin))
		}
	})
}

// A caller whose patience ends before its call learns how the call ends, and hears when that is
// over. A caller that was not sent, or has left, waits no longer.
func TestWhoOutlastsLearnsTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var line gather.Line[int]
		line.Init(2*full, delay, func(ctx context.Context, together []int) error {
			time.Sleep(10 * took)
			if _, outlasts := gather.Outlasts(ctx); len(together) > 1 && !outlasts {
				t.Errorf("%v: the call does not go on for those who outlast", together)
			}
			return nil
		})
		begin := time.Now()
		var all sync.WaitGroup
		for i, c := range []struct {
			patience, leaves, want time.Duration
			late                   bool
		}{
			{patience: time.Second, want: 10 * took},                               // Alone.
			{patience: time.Second, want: delay + 10*took},                         // The next call.
			{patience: 4 * took, want: delay + 10*took, late: true},                // It outlasts.
			{patience: took, want: took},                                           // Not sent.
			{patience: time.Second, leaves: 4 * took, want: 4 * took, late: false}, // It has left.
		} {
			all.Go(func() {
				ctx, cancel := context.WithTimeout(t.Context(), c.patience)
				defer cancel()
				late := false
				ctx = gather.Outlast(ctx, func(err error) {
					late = errors.Is(err, context.DeadlineExceeded) && time.Since(begin) == c.patience
				})
				if c.leaves > 0 {
					time.AfterFunc(c.leaves, cancel)
				}
				err := line.Do(ctx, i, 1)
				if time.Since(begin) != c.want || late != c.late || (err == nil) != (c.want >= 10*took) {
					t.Errorf("%d: after %v, late %v: %v", i, time.Since(begin), late, err)
				}
			})
			synctest.Wait()
		}
		all.Wait()
	})
}

// A caller who has left before its call began hears nothing of how that ends.
func TestACallerWhoHasLeftHearsNothing(t *testing.T) {
	left, cancel := context.WithCancel(gather.Outlast(t.Context(), func(error) { t.Error("it hears of the call") }))
	cancel()
	if late, outlasts := gather.Outlasts(gather.ContextOf(left, t.Context())); outlasts {
		late(context.DeadlineExceeded)
		t.Error("the call goes on, and no caller waits for it")
	}
}
