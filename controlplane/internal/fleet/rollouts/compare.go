package rollouts

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/weir-proxy/weir/controlplane/internal/observe/series"
	"github.com/weir-proxy/weir/controlplane/internal/rules/policies"
	"github.com/weir-proxy/weir/shared/wire"
)

// History counts what nodes decide, by version. It is implemented by *series.Service.
type History interface {
	Decided(version uint64, since time.Time) (sides map[string]series.Side, complete bool)
}

// Row is what a policy decided on the nodes of a rollout, and on the others.
type Row struct {
	// Policy is empty for all requests, whether policies match them or not.
	Policy      string
	Its, Others series.Side
	// Unlike: the versions differ in which requests it decides, so that only a share is judged.
	Unlike bool
}

// Comparison is what has been decided since From, all requests and by policy, those first whose
// refused share differs most.
type Comparison struct {
	From time.Time
	All  Row
	Rows []Row
	// Complete is false while the counts of other replicas may be missing.
	Complete bool
	// Rule is the first rule that is broken, and By its row; Verdict is Few if no rule has enough
	// requests to judge.
	Verdict Verdict
	Rule    Rule
	By      Row
}

// Compare compares both sides over the last minutes, and judges them by the rollout's rule. Unlike
// are the policies of which the versions differ in the requests that they decide.
func Compare(r policies.Rollout, unlike map[string]bool, history History, now time.Time) (c Comparison) {
	c.From = r.Since
	if earliest := now.Add(-series.Window); c.From.Before(earliest) {
		c.From = earliest
	}
	its, complete := history.Decided(r.Version, c.From)
	others, _ := history.Decided(r.Base, c.From)
	c.Complete = complete
	for name, side := range its {
		c.add(name, side, others[name])
	}
	for name, side := range others {
		if _, both := its[name]; !both {
			c.add(name, series.Side{}, side)
		}
	}
	slices.SortFunc(c.Rows, func(a, b Row) int {
		return cmp.Or(cmp.Compare(b.apart(), a.apart()), cmp.Compare(b.Its.Decided, a.Its.Decided),
			cmp.Compare(a.Policy, b.Policy))
	})
	for i := range c.Rows {
		c.Rows[i].Unlike = unlike[c.Rows[i].Policy]
	}
	if r.AbortIf != "" {
		c.judge(r.AbortIf, now.Sub(r.Since))
	}
	return c
}

func (c *Comparison) add(policy string, its, others series.Side) {
	if policy == wire.AllRequests {
		c.All = Row{Its: its, Others: others}
		return
	}
	c.Rows = append(c.Rows, Row{Policy: policy, Its: its, Others: others})
}

// apart is how far the refused shares of both sides are from each other.
func (r Row) apart() float64 {
	its, others := r.Its.Share(Refused.of(r.Its)), r.Others.Share(Refused.of(r.Others))
	return max(its-others, others-its)
}

func (c *Comparison) judge(text string, age time.Duration) {
	rules, err := Parse(text)
	if err != nil { // A replica of another version took it: this one leaves it to that.
		return
	}
	doubt := doubtOf(len(rules)*(1+len(c.Rows)), age)
	for _, rule := range rules {
		for _, row := range append([]Row{c.All}, c.Rows...) {
			if rule.Factor && row.Unlike {
				continue
			}
			switch rule.Judge(row.Its, row.Others, doubt) {
			case Broken:
				c.Verdict, c.Rule, c.By = Broken, rule, row
				return
			case Kept:
				c.Verdict = Kept
			}
		}
	}
}

// Why is the sentence that says why a rollout is stopped; empty if no rule is broken.
func (c Comparison) Why() string {
	if c.Verdict != Broken {
		return ""
	}
	of := "of all requests"
	if c.By.Policy != "" {
		of = "by policy " + c.By.Policy
	}
	words := map[Figure]string{Refused: "were refused", Waits: "waited", Errors: "were decided without the counters"}
	share := func(side series.Side) string {
		n := c.Rule.Figure.of(side)
		return fmt.Sprintf("%.3g %% (%d of %d)", 100*side.Share(n), n, side.Decided)
	}
	return fmt.Sprintf("%s: %s on its nodes %s %s, on the others %s", c.Rule, of, share(c.By.Its),
		words[c.Rule.Figure], share(c.By.Others))
}
