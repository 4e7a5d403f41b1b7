package cli

import (
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/weir-proxy/weir/controlplane/internal/serve/api"
)

type suggestCommand struct {
	getFlags
	Policy string  `arg:"" help:"The policy."`
	Limit  []int64 `help:"Quotas to try, in tokens per window; the policy's own if none is given." placeholder:"N"`
}

// Run prints how much the callers of a policy use, and the figure under which nearly all stay.
func (c *suggestCommand) Run(env *environment) error {
	// Get the distribution.
	cl, err := c.newClient()
	if err != nil {
		return err
	}
	query := url.Values{}
	for _, limit := range c.Limit {
		query.Add("limit", strconv.FormatInt(limit, 10))
	}
	path := "/v1/policies/" + url.PathEscape(c.Policy) + "/distribution?"
	got, err := cl.do(http.MethodGet, path+query.Encode(), nil, nil)
	if err != nil {
		return err
	}
	var d api.DistributionAnswer
	if printed, err := got.read(env, c.Output, &d); printed || err != nil {
		return err
	}
	// There may be no figure to suggest.
	window := time.Duration(d.WindowSeconds * float64(time.Second))
	if d.Uncovered {
		fmt.Fprintf(env.Out, "the window is %s, but the use of callers is kept for an hour only: no "+
			"figure is suggested; "+
			"weir simulate shows from an access log which requests a limit would refuse\n", window)
		return nil
	}
	if d.Suggestion == nil {
		fmt.Fprintf(env.Out, "no callers of %s are known: there are some after five to ten minutes of traffic, "+
			"unless it is local\n", c.Policy)
		return nil
	}
	// Print the suggestion, the use of callers, and the effect of each limit.
	fmt.Fprintf(env.Out, "%d per %s lets 99.9 %% of callers through, with a fifth to spare\n\n",
		d.Suggestion.Limit, window)
	fmt.Fprintf(env.Out, "%d callers in five minutes, from %s to %s\n", d.Callers, d.Since.Format(time.RFC3339),
		d.Until.Format(time.RFC3339))
	for _, q := range d.Quantiles {
		fmt.Fprintf(env.Out, "  %-5g %% use at most %.3g per %s\n", q.Q*100, q.Rate, window)
	}
	fmt.Fprintln(env.Out)
	return printTable(env.Out, "LIMIT\tCALLERS ABOVE\tOF ALL\tREFUSED", func(w io.Writer) {
		for _, l := range append(d.Limits, *d.Suggestion) {
			fmt.Fprintf(w, "%d per %s\t%d\t%.3g %%\t%.3g %%\n", l.Limit, window, l.Above, l.Share*100, l.Refused*100)
		}
	})
}
