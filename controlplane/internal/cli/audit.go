package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/weir-proxy/weir/controlplane/internal/api"
)

// resources are what audit entries call the things that are changed, some with a name after a slash.
var resources = []string{"policyset", "policies", "rollout", "consumers", "keys", "enforcement"}

type auditCommand struct {
	getFlags
	Since    string `help:"Only what was changed since then: 2h, 7d, or a time like 2030-01-01T00:00:00Z." placeholder:"TIME"`
	By       string `help:"Only what was changed with the token of this name." placeholder:"NAME"`
	Resource string `help:"Only changes of this, like policyset, policies/NAME, consumers/KEY; policies/ is all policies." placeholder:"RESOURCE"`
}

// Run prints who changed what, newest first.
func (c *auditCommand) Run(env *environment) error {
	query := url.Values{}
	if c.Since != "" {
		since, err := c.pastTime(c.Since)
		if err != nil {
			return fmt.Errorf("--since: %w", err)
		}
		query.Set("since", since.Format(time.RFC3339Nano))
	}
	if c.By != "" {
		query.Set("by", c.By)
	}
	if c.Resource != "" {
		if kind, _, _ := strings.Cut(c.Resource, "/"); !slices.Contains(resources, kind) {
			return fmt.Errorf("--resource: nothing is called %q; there are %s", c.Resource, strings.Join(resources, ", "))
		}
		query.Set("resource", c.Resource)
	}
	all := api.AuditAnswer{}
	err := c.pages("/v1/audit?"+query.Encode(), func(body []byte) (string, error) {
		var page api.AuditAnswer
		err := json.Unmarshal(body, &page)
		all.Entries = append(all.Entries, page.Entries...)
		return page.Next, err
	})
	if err != nil {
		return err
	}
	if c.Output == "json" {
		return printJSON(env.Out, map[string]any{"entries": all.Entries})
	}
	return table(env.Out, "TIME\tBY\tACTION\tRESOURCE\tBEFORE\tAFTER\tREASON", func(w io.Writer) {
		for _, e := range all.Entries {
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", e.At.Format(time.RFC3339), e.By, e.Action, e.Resource, inWords(e.Before), inWords(e.After), e.Reason)
		}
	})
}

// maxWords is how much of a value a table shows; -o json has all of it.
const maxWords = 100

// inWords shows a value that was changed, as JSON on one line.
func inWords(value any) string {
	if value == nil {
		return "-"
	}
	text, err := json.Marshal(value)
	if err != nil {
		return err.Error()
	}
	all := []rune(strings.NewReplacer("\t", " ", "\n", " ").Replace(string(text)))
	if len(all) > maxWords {
		all = append(all[:maxWords-1], '…')
	}
	return string(all)
}
