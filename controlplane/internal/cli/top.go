package cli

import (
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/weir-proxy/weir/controlplane/internal/serve/api"
)

type topCommand struct {
	getFlags
	By     string `enum:"refused,requests" default:"refused" help:"The counted requests: refused requests, or all requests of enforced policies."`
	Policy string `help:"Only callers of this policy." placeholder:"NAME"`
	Tier   string `help:"Only callers of this tier." placeholder:"NAME"`
	Number int    `short:"n" default:"20" help:"How many to print, at most 200."`
}

// Run prints the heaviest callers of the last five to ten minutes.
func (c *topCommand) Run(env *environment) error {
	// Get the heaviest callers.
	cl, err := c.newClient()
	if err != nil {
		return err
	}
	query := url.Values{"by": {c.By}, "page_size": {strconv.Itoa(c.Number)}}
	for name, value := range map[string]string{"policy": c.Policy, "tier": c.Tier} {
		if value != "" {
			query.Set(name, value)
		}
	}
	got, err := cl.do(http.MethodGet, "/v1/top?"+query.Encode(), nil, nil)
	if err != nil {
		return err
	}
	var top api.TopAnswer
	if printed, err := got.read(env, c.Output, &top); printed || err != nil {
		return err
	}
	// Print them.
	if !top.Complete {
		fmt.Fprintln(env.Err, heldFigures)
	}
	counted := ""
	if c.By == "requests" {
		counted = "; below, requests are counted, refused or not"
	}
	fmt.Fprintf(env.Out, "since %s, %d refused in all%s%s\n\n", top.Since.Format(time.RFC3339), top.Refused, counted,
		ofBoth(got))
	return printTable(env.Out, "COUNT\tTOO HIGH BY UP TO\tPOLICY\tTIER\tBUCKET\tCONSUMER\tSHOWN", func(w io.Writer) {
		for _, t := range top.Callers {
			fmt.Fprintf(w, "%d\t%d\t%s\t%s\t%s\t%s\t%s\n", t.Count, t.Over, t.Policy, t.Tier, keyText(t.Key),
				t.Consumer, parts(t.Shown))
		}
	})
}

// keyText returns a hash, or a dash if it is all zeros, which is no key.
func keyText(hash string) string {
	if strings.Trim(hash, "0") == "" {
		return "-"
	}
	return hash
}
