package limiter_test

import (
	"fmt"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/weir-proxy/weir/filter/internal/base/bucketstore"
	"github.com/weir-proxy/weir/filter/internal/base/ruleset"
	"github.com/weir-proxy/weir/filter/internal/decide/limiter"
	"github.com/weir-proxy/weir/shared/quota"
)

// ownQuota is a policy whose quota is the caller's own.
func ownQuota(more string) string {
	return `{"name":"p","partition":[],"mode":"local","limit":{"quota":{"header":"x-limit","trusted":true,"max":600,"default":60},"window":"1m"}` + more + `}`
}

// In windows, too, a caller's figures decide each of his requests, and each wait is exact.
func TestOwnFiguresInWindows(t *testing.T) {
	for more, steps := range map[string][]struct {
		at    quota.Instant
		limit string
		want  int // requests that pass until one is refused
		retry quota.Span
	}{
		`,"algorithm":"fixed_window","align":"utc"`: {
			{0, "5", 5, 20 * quota.Second}, {0, "60", 55, 20 * quota.Second}, {0, "600", 540, 20 * quota.Second},
			{20 * sec, "5", 5, quota.Minute},
		},
		`,"algorithm":"sliding_window","subwindows":60`: {
			{0, "5", 5, 61*quota.Second - 1}, {10 * sec, "none", 55, 51*quota.Second - 1},
			{20 * sec, "600", 540, 41*quota.Second - 1}, {61 * sec, "5", 0, 20*quota.Second - 1},
		},
	} {
		n := newNode(t, false, ownQuota(more))
		start := n.now
		for i, s := range steps {
			n.now = start + s.at
			passed := n.spendAs("x-limit", s.limit)
			req, _ := n.begin("x-limit", s.limit)
			if h := req.Hits[0]; passed != s.want || h.Retry != s.retry || h.Reset < h.Retry {
				t.Errorf("%s, step %d: %d passed, retry %d, reset %d; want %d and %d", more, i, passed, h.Retry,
					h.Reset, s.want, s.retry)
			}
		}
	}
}

// However callers mix their figures, and whichever key crowds out their bucket, no more passes than
// one bucket of the largest figures lets through.
func TestCallersOfOneBucketMintNothing(t *testing.T) {
	most, err := quota.NewParams(600, quota.Minute, 600)
	if err != nil {
		t.Fatal(err)
	}
	rapid.Check(t, func(rt *rapid.T) {
		n := newNode(t, false, ownQuota(""))
		// A table of one slot.
		n.limiter = limiter.New(limiter.Config{
			Store: bucketstore.New(n.data, [4]byte{1}, 8, 0), Flights: newBook(n.data, 1),
		})
		n.push(2, ownQuota("")+`,{"name":"flood","match":{"headers":[{"name":"flood","present":true}]},"partition":["header:flood"],"mode":"local","limit":{"quota":1000,"window":"1d"}}`)
		var all quota.State
		for range rapid.IntRange(1, 80).Draw(rt, "requests") {
			n.now += quota.Instant(rapid.Int64Range(0, int64(20*sec)).Draw(rt, "later"))
			for i := range rapid.SampledFrom([]int{0, 0, 0, 20}).Draw(rt, "flood") {
				n.begin("flood", fmt.Sprint(i), "x-limit", "1")
			}
			figure := rapid.SampledFrom([]string{"1", "7", "60", "600"}).Draw(rt, "figure")
			passed := 0
			for range rapid.IntRange(1, 300).Draw(rt, "together") {
				if _, status := n.begin("x-limit", figure); status == limiter.Allowed {
					passed++
				}
			}
			var r quota.Result
			if all, r = most.Take(all, n.now, int64(passed)); !r.Allowed {
				rt.Fatalf("%d more passed with %s, and a bucket of the largest figures has not got as many", passed,
					figure)
			}
		}
	})
}

// A worker with the old policy set uses the figures that it finds in a bucket, each time: its
// request does not bring the old largest figures back.
func TestAnOlderWorkerBringsNoFiguresBack(t *testing.T) {
	lowered := strings.Replace(ownQuota(""), `"max":600,"default":60`, `"max":6,"default":6`, 1)
	plain := `{"name":"p","partition":[],"mode":"local","limit":{"quota":6,"window":"1m"}}`
	for name, newer := range map[string]string{"lowered": lowered, "plain": plain} {
		n := newNode(t, false, ownQuota(""))
		before := n.rules
		n.push(2, newer)
		after, start := n.rules, n.now
		for i, s := range []struct {
			at    quota.Span
			rules *ruleset.Rules
			want  int
		}{
			{0, after, 6}, {0, before, 0}, {10 * quota.Second, before, 1}, {10 * quota.Second, after, 0},
			{20 * quota.Second, before, 1}, {40 * quota.Second, after, 2},
		} {
			n.now, n.rules = start+quota.Instant(s.at), s.rules
			if got := n.spendAs("x-limit", "600"); got != s.want {
				t.Errorf("%s: step %d: %d passed, want %d", name, i, got, s.want)
			}
		}
	}
}

// spendAs makes requests until one is not allowed and returns how many were.
func (n *node) spendAs(headers ...string) int {
	for allowed := 0; ; allowed++ {
		if _, status := n.begin(headers...); allowed > 1000 || status != limiter.Allowed {
			return allowed
		}
	}
}

// If plugins side by side have buckets of their own, a caller's figures still belong to a single
// bucket, and another maximum makes another limit.
func TestFiguresOfPluginsSideBySide(t *testing.T) {
	n := newNode(t, false, ownQuota(""))
	store := bucketstore.New(n.data, [4]byte{2}, 1024, 0)
	store.Apart(n.now - sec) // Buckets begin after the set did, so none starts from the state of an old bucket.
	n.limiter = limiter.New(limiter.Config{Store: store, Flights: newBook(n.data, 1)})
	pass := func(want int, headers ...string) {
		t.Helper()
		passed := 0
		for ; passed < 1000; passed++ {
			if _, status := n.begin(headers...); status != limiter.Allowed {
				break
			}
		}
		if passed != want {
			t.Errorf("%d passed, want %d", passed, want)
		}
	}
	pass(5, "x-limit", "5")
	pass(55, "x-limit", "60")
	n.push(3, `{"name":"p","partition":[],"mode":"local","limit":{"quota":60,"window":"1m"}}`)
	pass(60)
	n.push(4, `{"name":"p","partition":[],"mode":"local","limit":{"quota":{"header":"x-limit","trusted":true,"max":700,"default":60},"window":"1m"}}`)
	pass(60)
	n.push(5, ownQuota(""))
	pass(0)
}

// Questions to the control plane have the caller's figures, and tokens for one caller are not asked
// for with the figures of another caller.
func TestFiguresAreAskedFor(t *testing.T) {
	for _, mode := range []string{"strict", "leased"} {
		n := newNode(t, true, "")
		n.push(2, `{"name":"p","partition":[],"mode":"`+mode+`","limit":{"quota":{"header":"x-limit","trusted":true,"max":600,"default":60},"window":"1m"}}`)
		var requests []*limiter.Request
		for _, figure := range []string{"5", "30", "30", "9999", "none"} {
			req, status := n.begin("x-limit", figure)
			if status != limiter.Paused {
				t.Fatalf("%s: %s is %d", mode, figure, status)
			}
			requests = append(requests, req)
		}
		var asked []string
		for len(n.calls) > 0 {
			for _, it := range n.asked {
				asked = append(asked, fmt.Sprintf("%d for %d/%d", it.Waiting, it.Quota, it.Burst))
			}
			call := n.calls[0]
			n.calls = n.calls[1:]
			call(200)
		}
		if got, want := fmt.Sprint(asked), "[1 for 5/5 2 for 30/30 1 for 600/600 1 for 60/60]"; got != want {
			t.Errorf("%s: asked %s, want %s", mode, got, want)
		}
		for i, req := range requests {
			if status := n.limiter.Resume(req, n.now); status != limiter.Allowed {
				t.Errorf("%s: request %d is %d", mode, i, status)
			}
		}
	}
}

// A node's share in a failure is a share of the caller's own limit, and counts the tokens of all
// callers.
func TestFiguresOfAShare(t *testing.T) {
	n := newNode(t, true, "")
	n.push(2, `{"name":"p","partition":[],"mode":"strict","limit":{"quota":{"header":"x-limit","trusted":true,"max":600,"default":60},"window":"1m"}}`)
	for range 3 {
		req, _ := n.begin("x-limit", "10")
		n.answer(503, req)
		n.now += sec / 2
		n.leases.Tick(n.now)
	}
	for i, c := range []struct {
		figure string
		most   int
	}{{"10", 10}, {"20", 20}, {"10", 0}} {
		passed := 0
		for ; passed < 100; passed++ {
			if _, status := n.begin("x-limit", c.figure); status != limiter.Allowed {
				break
			}
		}
		if passed > c.most || passed == 0 && c.most > 0 {
			t.Errorf("step %d: %d passed with %s", i, passed, c.figure)
		}
	}
}

// A node counts an optimistic bucket in units that suit all callers' figures, and its report counts
// for all callers.
func TestFiguresOfAnOptimisticBucket(t *testing.T) {
	n := newNode(t, true, "")
	n.push(2, `{"name":"p","partition":[],"mode":"optimistic","limit":{"quota":{"header":"x-limit","trusted":true,"max":1000000,"default":60},"window":"1d"}}`)
	for i, c := range []struct {
		figure string
		want   int
	}{{"7", 7}, {"20", 13}, {"7", 0}, {"none", 40}, {"1000", 940}, {"7", 0}, {"1000", 0}, {"20", 0}, {"1100", 100}} {
		passed := 0
		for tries := 0; tries < 4; {
			req, status := n.begin("x-limit", c.figure)
			for status == limiter.Paused { // Requests beyond its slack wait.
				status = n.answer(200, req)
			}
			if status == limiter.Allowed {
				passed++
				continue
			}
			tries++ // It may not know the earned tokens, so it reports and reads the answer.
			n.now += sec / 8
			n.leases.Tick(n.now)
			n.answerAll()
		}
		if passed < c.want || passed > c.want+c.want/100 { // A few are earned meanwhile.
			t.Errorf("step %d: %d passed with %s, want %d", i, passed, c.figure, c.want)
		}
	}
}
