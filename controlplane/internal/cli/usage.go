package cli

import (
	"fmt"
	"io"
	"net/http"
	"slices"
	"time"

	"github.com/weir-proxy/weir/controlplane/internal/rules/policies"
	"github.com/weir-proxy/weir/controlplane/internal/serve/api"
)

type usageCommand struct {
	getFlags
	Key    string `arg:"" help:"Your key, as your requests have it; - reads it from the standard input, so that other users do not see it."`
	Header string `default:"x-api-key" help:"The header that your requests have it in." placeholder:"NAME"`
}

// Run prints the caller's remaining quota.
func (c *usageCommand) Run(env *environment) error {
	// Ask with the caller's key.
	cl, err := c.newAnonymousClient()
	if err != nil {
		return err
	}
	key, err := readArgument(env, c.Key)
	if err != nil {
		return err
	}
	got, err := cl.do(http.MethodGet, "/v1/usage", map[string]string{c.Header: key}, nil)
	if err != nil {
		return err
	}
	var left api.UsageAnswer
	if printed, err := got.read(env, c.Output, &left); printed || err != nil {
		return err
	}
	// Print the caller's standing and limits. During a rollout each line names its version.
	printStanding(env.Out, left.Standing)
	if left.Tier != "" {
		fmt.Fprintf(env.Out, "Your tier is %s.\n", left.Tier)
	}
	head := "POLICY\tLIMIT\tREMAINING\tFULL IN"
	rolledOut := slices.ContainsFunc(left.Limits, func(l api.UsedLimit) bool { return l.Version > 0 })
	if rolledOut {
		head = "VERSION\t" + head
	}
	err = printTable(env.Out, head, func(w io.Writer) {
		for _, l := range left.Limits {
			if rolledOut {
				fmt.Fprintf(w, "%s\t", ofVersion(l.Version))
			}
			fmt.Fprintf(w, "%s\t%s\t%d of %d\t%s\n", l.Policy, l.Limit, l.Remaining, l.Quota,
				inSeconds(l.FullAfterSeconds))
		}
	})
	for _, l := range left.Limits {
		printSettles(env.Out, l.Policy+", "+l.Limit, l.Settles, l.Owed, l.AdmitsAfterSeconds)
	}
	return err
}

// printSettles prints how a limit charges requests whose cost is known later, and the tokens that
// are owed.
func printSettles(out io.Writer, limit string, s *policies.Settles, owed int64, after float32) {
	if s != nil {
		fmt.Fprintf(out, "\n%s: %s.\n  owed %s\n", limit, settlesText(s), owedText(owed, after, "the smallest request"))
	}
}

// inSeconds returns a number of seconds in a form for people.
func inSeconds(n float32) time.Duration {
	return time.Duration(float64(n) * float64(time.Second)).Round(100 * time.Millisecond)
}
