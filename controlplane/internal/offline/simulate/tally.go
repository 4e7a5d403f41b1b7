package simulate

import (
	"cmp"
	"slices"
	"time"

	"github.com/weir-proxy/weir/controlplane/internal/observe/decisions"
	"github.com/weir-proxy/weir/shared/quota"
)

// MaxCallers is the maximum number of callers that are counted exactly. If there are more, the
// callers with the most refusals stay in the list (space-saving sketch), and each count is too high
// by at most its Error.
const MaxCallers = 100_000

// Caller is a caller that a policy refused.
type Caller struct {
	Who     string `json:"who"`
	Policy  string `json:"policy"`
	Refused int64  `json:"refused"`
	// Error is the maximum by which Refused is too high; 0 for an exact count.
	Error int64     `json:"error,omitempty"`
	First time.Time `json:"first"`
	Last  time.Time `json:"last"`
}

// callers counts refusals by policy and caller, in bounded memory.
type callers struct{ *decisions.Summary }

// newCallers makes a counter of at most the given number of callers.
func newCallers(most int) callers { return callers{decisions.NewSummary(most)} }

// addRefusal counts a refusal.
func (c callers) addRefusal(policy, who string, at quota.Instant) {
	one := c.Add(policy+"\x00"+who, 1, 0)
	if one.About == nil {
		one.About = &Caller{Who: who, Policy: policy, First: timeOf(at)}
	}
	one.About.(*Caller).Last = timeOf(at)
}

// listCallers returns the callers, sorted by their refusals. exact is true if every count is exact.
func (c callers) listCallers() (out []Caller, exact bool) {
	exact = true
	for _, counter := range c.Top(c.Len()) {
		one := *counter.About.(*Caller)
		one.Refused, one.Error = counter.Count, counter.Over
		out, exact = append(out, one), exact && one.Error == 0
	}
	slices.SortFunc(out, func(a, b Caller) int {
		return cmp.Or(
			cmp.Compare(b.Refused, a.Refused), a.First.Compare(b.First),
			cmp.Compare(a.Policy, b.Policy), cmp.Compare(a.Who, b.Who),
		)
	})
	return out, exact
}

// timeOf returns a time of the log as a time.Time.
func timeOf(at quota.Instant) time.Time { return time.UnixMicro(int64(at)).UTC() }
