package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"net/url"
	"strings"
	"time"

	"github.com/weir-proxy/weir/controlplane/internal/api"
)

type auditCommand struct {
	getFlags
	Since    string `help:"Only what was changed since then: 2h, or a time like 2026-05-04T09:30:00Z." placeholder:"TIME"`
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

// pastTime reads a time, or how long ago it was by the control plane's clock.
func (f serverFlags) pastTime(text string) (time.Time, error) {
	if ago, err := time.ParseDuration(text); err == nil && ago >= 0 {
		now, err := f.now()
		return now.Add(-ago), err
	}
	at, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return at, fmt.Errorf("%q is neither like 90m nor like 2026-05-04T09:30:00Z", text)
	}
	return at, nil
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
