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

// History counts the decisions of nodes, by version. It is implemented by *series.Service.
type History interface {
	Decided(version uint64, since time.Time) (sides map[string]series.Side, complete bool)
}

// Row compares the decisions of a policy on the rollout's nodes with those on the other nodes.
type Row struct {
	// Policy is empty for all requests, with or without a matching policy.
	Policy      string
	Its, Others series.Side
	// Unlike is true if the policy decides different requests in the two versions: then only its
	// share can be judged.
	Unlike bool
}

// Comparison has the decisions since From, of all requests and by policy. The policy whose refused
// shares differ most is first.
type Comparison struct {
	From time.Time
	All  Row
	Rows []Row
	// Complete is false while the counts of other replicas may be missing.
	Complete bool
	// Rule is the first broken rule, and By its row. Verdict is Few if no rule has enough requests
	// to be judged.
	Verdict Verdict
	Rule    Rule
	By      Row
}

// Compare compares both sides over the last minutes, and judges them by the rollout's rule. unlike
// lists the policies that decide different requests in the two versions.
func Compare(r policies.Rollout, unlike map[string]bool, history History, now time.Time) (c Comparison) {
	c.From = r.Since
	if earliest := now.Add(-series.Window); c.From.Before(earliest) {
		c.From = earliest
	}
	// Read the decisions of both sides.
	its, complete := history.Decided(r.Version, c.From)
	others, _ := history.Decided(r.Base, c.From)
	c.Complete = complete
	for name, side := range its {
		c.addRow(name, side, others[name])
	}
	for name, side := range others {
		if _, both := its[name]; !both {
			c.addRow(name, series.Side{}, side)
		}
	}
	// Sort the rows.
	slices.SortFunc(c.Rows, func(a, b Row) int {
		return cmp.Or(cmp.Compare(b.difference(), a.difference()), cmp.Compare(b.Its.Decided, a.Its.Decided),
			cmp.Compare(a.Policy, b.Policy))
	})
	for i := range c.Rows {
		c.Rows[i].Unlike = unlike[c.Rows[i].Policy]
	}
	if r.AbortIf != "" {
		c.judgeRows(r.AbortIf, now.Sub(r.Since))
	}
	return c
}

func (c *Comparison) addRow(policy string, its, others series.Side) {
	if policy == wire.AllRequests {
		c.All = Row{Its: its, Others: others}
		return
	}
	c.Rows = append(c.Rows, Row{Policy: policy, Its: its, Others: others})
}

// difference returns the difference of the refused shares of both sides.
func (r Row) difference() float64 {
	its, others := r.Its.Share(Refused.countOf(r.Its)), r.Others.Share(Refused.countOf(r.Others))
	return max(its-others, others-its)
}

func (c *Comparison) judgeRows(text string, age time.Duration) {
	rules, err := Parse(text)
	if err != nil { // A replica of another version accepted the rule, and judges it.
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

// Why returns the sentence with the reason of a stop; empty if no rule is broken.
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
		n := c.Rule.Figure.countOf(side)
		return fmt.Sprintf("%.3g %% (%d of %d)", 100*side.Share(n), n, side.Decided)
	}
	return fmt.Sprintf("%s: %s on its nodes %s %s, on the others %s", c.Rule, of, share(c.By.Its),
		words[c.Rule.Figure], share(c.By.Others))
}
