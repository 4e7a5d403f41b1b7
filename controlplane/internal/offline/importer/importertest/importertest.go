// Package importertest has the checks that the tests of all importers need: whether each item has a
// verdict, and how an imported limit decides.
package importertest

import (
	"fmt"
	"strings"
	"testing"

	"github.com/weir-proxy/weir/controlplane/internal/offline/importer"
	"github.com/weir-proxy/weir/controlplane/internal/rules/policydoc"
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/quota"
)

// Set reads the policy set of a result; the test fails if it is not valid.
func Set(t testing.TB, r *importer.Result) *policy.Set {
	t.Helper()
	set, err := policydoc.Load(r.Document, policydoc.YAML)
	if err != nil {
		t.Fatalf("the document is refused: %v\n%s", err, r.Document)
	}
	return set
}

// Verdicts returns the items of a result, an item a line: line, verdict and name.
func Verdicts(r *importer.Result) string {
	var text strings.Builder
	for _, i := range r.Items {
		fmt.Fprintf(&text, "%d %s: %s", i.Line, i.Verdict, i.What)
		if i.Reason != "" {
			text.WriteString(": " + i.Reason)
		}
		text.WriteString("\n")
	}
	return text.String()
}

// Account checks that each given line of a source has at least one verdict for each time that it is
// given, and that no other line has a verdict.
func Account(t testing.TB, r *importer.Result, lines []int) {
	t.Helper()
	want, got := map[int]int{}, map[int]int{}
	for _, line := range lines {
		want[line]++
	}
	for _, item := range r.Items {
		got[item.Line]++
		if want[item.Line] == 0 {
			t.Errorf("an item that is none: %s", item)
		}
	}
	for line, n := range want {
		if got[line] < n {
			t.Errorf("line %d has %d items and %d verdicts", line, n, got[line])
		}
	}
}

// Bucket is a policy's state for one partition key.
type Bucket struct {
	policy    *policy.Policy
	states    []quota.State
	histories []quota.History
}

// NewBucket makes the bucket of a policy by its name.
func NewBucket(t testing.TB, set *policy.Set, name string) *Bucket {
	t.Helper()
	for i := range set.Policies {
		if p := &set.Policies[i]; p.Name == name {
			return &Bucket{p, make([]quota.State, len(p.Limits)), make([]quota.History, len(p.Limits))}
		}
	}
	t.Fatalf("there is no policy %s", name)
	return nil
}

// Take decides a request at a time. It charges all limits of the policy if all of them allow the
// request; otherwise it charges no limit. delay is the time for which the leaky buckets among the
// limits hold an allowed request back.
func (b *Bucket) Take(now quota.Instant) (allowed bool, delay quota.Span) {
	// Charge copies, so that a refusal changes nothing.
	states := append([]quota.State(nil), b.states...)
	histories := make([]quota.History, len(b.histories))
	for i, l := range b.policy.Limits {
		histories[i] = quota.History{Last: b.histories[i].Last,
			Marks: append([]quota.Mark(nil), b.histories[i].Marks...)}
		var result quota.Result
		if l.Algorithm.Windowed() {
			result = l.WindowsOf(keyhash.Key{}).Take(&histories[i], now, 1)
		} else {
			before := l.Params.Refill(states[i], now)
			states[i], result = l.Params.Take(states[i], now, 1)
			if l.Algorithm == quota.LeakyBucket {
				delay = max(delay, l.Params.Delay(before, now))
			}
		}
		if !result.Allowed {
			return false, 0
		}
	}
	b.states, b.histories = states, histories
	return true, delay
}

// Moments returns n times after a start, in whole milliseconds. The gaps between them are short,
// and now and then long. The same seed gives the same times.
func Moments(seed uint64, start quota.Instant, n int, longest quota.Span) []quota.Instant {
	all := make([]quota.Instant, n)
	for i := range all {
		seed = seed*6364136223846793005 + 1442695040888963407
		gap := quota.Span(seed>>33) % (longest / quota.Millisecond)
		if seed>>62 != 0 {
			gap /= 50 // Bursts, and a pause now and then.
		}
		start += quota.Instant(gap * quota.Millisecond)
		all[i] = start
	}
	return all
}
