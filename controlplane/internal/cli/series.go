package cli

import (
	"fmt"
	"io"
	"math"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/weir-proxy/weir/controlplane/internal/serve/api"
)

// heldFigures is the warning that figures were not read from the store.
const heldFigures = "weir: the store does not answer: the figures have only the reports of nodes to this " +
	"control plane"

type seriesCommand struct {
	getFlags
	Policy  []string `arg:"" optional:"" help:"Only these policies."`
	By      string   `enum:"policy,node,all" default:"policy" help:"A line for each policy, a line for each node, or a single line for all."`
	Outcome []string `enum:"refused,requests,tokens,shadow_refused,candidate_refused,in_flight,utilisation,shadow_undetermined,candidate_undetermined" default:"refused" help:"The figure to show: refused requests, decided requests (an estimate), granted tokens, requests that policies in shadow or candidate limits would have refused, requests for which these are undetermined, the average number of requests in flight, or the highest level of use of the fullest bucket, in percent."`
	Range   string   `enum:"1h,24h" default:"1h" help:"How far back: 1h or 24h."`
	Number  int      `short:"n" default:"20" help:"How many lines to print, at most 200."`
}

// Run prints the decisions over time, a line for each policy.
func (c *seriesCommand) Run(env *environment) error {
	cl, err := c.newClient()
	if err != nil {
		return err
	}
	query := url.Values{"by": {c.By}, "range": {c.Range}, "page_size": {strconv.Itoa(c.Number)}, "outcome": c.Outcome}
	query["policy"] = c.Policy
	query["outcome"] = slices.Clone(c.Outcome)
	for _, outcome := range c.Outcome { // A trial's figures need its open decisions.
		if tried, ok := strings.CutSuffix(outcome, "_refused"); ok {
			query.Add("outcome", tried+"_undetermined")
		}
	}
	slices.Sort(query["outcome"])
	query["outcome"] = slices.Compact(query["outcome"])
	if query.Set("step", "1m"); c.Range == "24h" {
		query.Set("step", "30m")
	}
	got, err := cl.do(http.MethodGet, "/v1/series?"+query.Encode(), nil, nil)
	if err != nil {
		return err
	}
	var answer api.SeriesAnswer
	if printed, err := got.read(env, c.Output, &answer); printed || err != nil {
		return err
	}
	if !answer.Complete {
		fmt.Fprintln(env.Err, heldFigures)
	}
	if len(answer.Series) == 0 {
		fmt.Fprintln(env.Out, "nothing has been counted yet: nodes report refusals once a second, "+
			"and requests in flight every five seconds")
		return nil
	}
	whole := ofBoth(got)
	if whole != "" {
		whole += ": weir rollout has each"
	}
	fmt.Fprintf(env.Out, "from %s to %s, %s for each mark%s\n\n", answer.From.Format(time.RFC3339),
		answer.Until.Format(time.RFC3339), time.Duration(answer.StepSeconds)*time.Second, whole)
	return printTable(env.Out, "TOTAL\tHIGHEST\tOUTCOME\tPOLICY\tNODE\tOVER TIME", func(w io.Writer) {
		for _, one := range answer.Series {
			marks, highest := drawSpark(one.Values)
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\n", shortNumber(one.Total), shortNumber(highest), one.Outcome,
				one.Policy, one.Node, marks)
		}
	})
}

// ofBoth says of counts during a rollout that they are of both versions; empty at other times.
func ofBoth(got answer) string {
	if got.header.Get(api.RolloutHeader) == "" {
		return ""
	}
	return ", of both versions together"
}

// drawSpark draws values as bars, a space for an unknown value, and returns the highest value.
func drawSpark(values []*float64) (marks string, highest float64) {
	for _, v := range values {
		if v != nil {
			highest = max(highest, *v)
		}
	}
	bars := []rune("▁▂▃▄▅▆▇█")
	var b strings.Builder
	for _, v := range values {
		switch {
		case v == nil:
			b.WriteRune(' ')
		case *v == 0:
			b.WriteRune('·')
		default:
			b.WriteRune(bars[min(max(int(math.Ceil(*v/highest*float64(len(bars))))-1, 0), len(bars)-1)])
		}
	}
	return b.String(), highest
}

// shortNumber writes a number with one digit behind the point, if it has any.
func shortNumber(n float64) string {
	if n == math.Trunc(n) {
		return strconv.FormatFloat(n, 'f', 0, 64)
	}
	return strconv.FormatFloat(n, 'f', 1, 64)
}
