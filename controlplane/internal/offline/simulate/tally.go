package simulate

import (
	"cmp"
	"slices"
	"time"

	"github.com/weir-proxy/weir/controlplane/internal/observe/decisions"
	"github.com/weir-proxy/weir/shared/quota"
)

// MaxCallers is how many callers are counted exactly. If there are more, those with the most
// refusals stay, by the space-saving sketch: each count is then too high by its Error at most.
const MaxCallers = 100_000

// Caller is who was refused by a policy.
type Caller struct {
	Who     string `json:"who"`
	Policy  string `json:"policy"`
	Refused int64  `json:"refused"`
	// Error is by how much Refused may be too high; 0 for an exact count.
	Error int64     `json:"error,omitempty"`
	First time.Time `json:"first"`
	Last  time.Time `json:"last"`
}

// callers counts refusals by policy and caller, in bounded memory.
type callers struct{ *decisions.Summary }

func newCallers(most int) callers { return callers{decisions.NewSummary(most)} }

func (c callers) add(policy, who string, at quota.Instant) {
	one := c.Add(policy+"\x00"+who, 1, 0)
	if one.About == nil {
		one.About = &Caller{Who: who, Policy: policy, First: instant(at)}
	}
	one.About.(*Caller).Last = instant(at)
}

// all are the callers, those with the most refusals first; exact reports that each is counted in
// full.
func (c callers) all() (out []Caller, exact bool) {
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

func instant(at quota.Instant) time.Time { return time.UnixMicro(int64(at)).UTC() }
