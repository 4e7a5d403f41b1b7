package policy_test

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/quota"
)

var draw = flag.Bool("draw", false, "print the picture of docs/choose/algorithms.md instead of checking it")

const (
	pageOfPolicies = "../../docs/choose/algorithms.md"
	pictured       = 30 // seconds
)

// sent returns the number of requests in a second of the picture: none, a burst, another burst
// three seconds later, then a little more than the limit for the rest of the time.
func sent(second int) int {
	switch {
	case second == 8 || second == 11:
		return 15
	case second >= 14:
		return 2
	}
	return 0
}

// passed is how many requests are let through in each second.
func passed(l policy.Limit) (by [pictured]int, most int) {
	var state quota.State
	var history quota.History
	var at []quota.Instant
	for second := range pictured {
		for i := range sent(second) {
			now := quota.Instant(second)*quota.Instant(quota.Second) +
				quota.Instant(i)*quota.Instant(quota.Millisecond)*10
			release := now
			var r quota.Result
			if l.Algorithm.Windowed() {
				r = l.WindowsOf(keyhash.Key{}).Take(&history, now, 1)
			} else {
				if l.Algorithm == quota.LeakyBucket {
					release += quota.Instant(l.Params.Delay(state, now))
				}
				state, r = l.Params.Take(state, now, 1)
			}
			if r.Allowed {
				at = append(at, release)
			}
		}
	}
	for i, release := range at {
		if s := int(release / quota.Instant(quota.Second)); s < pictured {
			by[s]++
		}
		within := 0
		for _, earlier := range at[:i+1] {
			if release-earlier < quota.Instant(10*quota.Second) {
				within++
			}
		}
		most = max(most, within)
	}
	return by, most
}

func row(name string, count func(second int) int, last string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%-23s", name)
	for s := range pictured {
		if n := count(s); n > 0 {
			fmt.Fprintf(&b, "%3d", n)
		} else {
			b.WriteString("  ·")
		}
	}
	return strings.TrimRight(b.String()+"   "+last, " ") + "\n"
}

// picture returns the table of the page: the requests that pass with each algorithm and a limit of
// ten in ten seconds.
func picture(t *testing.T) string {
	t.Helper()
	text := strings.Replace(row("second", func(s int) int { return s }, "most in 10 s"), "·", "0", 1)
	text += row("sent", sent, "")
	for _, c := range []policy.Counting{
		{Algorithm: quota.TokenBucket}, {Algorithm: quota.FixedWindow}, {Algorithm: quota.SlidingWindowCounter},
		{Algorithm: quota.SlidingWindow, Subwindows: quota.DefaultSubwindows}, {Algorithm: quota.SlidingLog},
		{Algorithm: quota.LeakyBucket, MaxWait: 10 * quota.Second},
	} {
		l, err := policy.NewLimit(c, 10, 10*quota.Second, 0)
		if err != nil {
			t.Fatal(err)
		}
		by, most := passed(l)
		text += row(c.Algorithm.String(), func(s int) int { return by[s] }, fmt.Sprint(most))
	}
	return text
}

func TestThePictureOfThePageIsTrue(t *testing.T) {
	want := picture(t)
	if *draw {
		fmt.Print(want)
		return
	}
	page, err := os.ReadFile(pageOfPolicies)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(page), want) {
		t.Errorf("%s should show (go test ./shared/policy -run Picture -draw -v prints it):\n%s", pageOfPolicies, want)
	}
}
