package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/weir-proxy/weir/controlplane/internal/serve/api"
	"github.com/weir-proxy/weir/controlplane/internal/serve/api/gen"
)

// resources are the names of changed things in audit entries. In some entries a name follows after
// a slash.
var resources = []string{"policyset", "policies", "rollout", "consumers", "keys", "enforcement",
	"penalties"}

type auditCommand struct {
	getFlags
	Since    string `help:"Only changes since this time: 2h, 7d, or a time like 2030-01-01T00:00:00Z." placeholder:"TIME"`
	By       string `help:"Only changes with the token of this name." placeholder:"NAME"`
	Resource string `help:"Only changes of this resource and all resources below it, like policyset, policies/NAME or consumers/KEY; policies is all policies." placeholder:"RESOURCE"`
	Full     bool   `help:"Print below each change the state before and after, and the request."`
}

// Run prints who changed what, newest first.
func (c *auditCommand) Run(env *environment) error {
	// Make the query from the flags.
	query := url.Values{}
	if c.Since != "" {
		since, err := c.pastTime(c.Since)
		if err != nil {
			return err
		}
		query.Set("since", since.Format(time.RFC3339Nano))
	}
	if c.By != "" {
		query.Set("by", c.By)
	}
	if c.Resource != "" {
		if kind, _, _ := strings.Cut(c.Resource, "/"); !slices.Contains(resources, kind) {
			return fmt.Errorf("--resource: nothing is called %q; there are %s", c.Resource,
				strings.Join(resources, ", "))
		}
		query.Set("resource", c.Resource)
	}
	// Get all pages, and print them.
	all := api.AuditAnswer{Entries: []gen.AuditEntry{}}
	err := c.readPages("/v1/audit?"+query.Encode(), func(body []byte) (string, error) {
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
	return printTable(env.Out, "TIME\tBY\tCHANGE", func(w io.Writer) {
		for i := range all.Entries {
			e := &all.Entries[i]
			fmt.Fprintf(w, "%s\t%s\t%s\n", e.At.Format(time.RFC3339), printable(authorOf(e)), describeChange(e))
			if c.Full {
				writeWhole(w, e)
			}
		}
	})
}

// authorOf returns the author of a change.
func authorOf(e *gen.AuditEntry) string {
	if e.By == "" {
		return "weir"
	}
	return e.By
}

// writeWhole prints everything that is kept of a change, below its sentence.
func writeWhole(w io.Writer, e *gen.AuditEntry) {
	for _, part := range []struct {
		name  string
		value any
	}{
		{"action", e.Action}, {"resource", e.Resource}, {"request", e.RequestID}, {"before", e.Before},
		{"after", e.After},
	} {
		text, ok := part.value.(string)
		if !ok && part.value != nil {
			text = asJSON(part.value)
		}
		if text != "" {
			fmt.Fprintf(w, "\t\t  %s: %s\n", part.name, printable(text))
		}
	}
}

// maxWords is how much is shown of a value without a sentence of its own; --full and -o json show
// all of it.
const maxWords = 100

// inWords shows a value that was changed, as JSON on one line.
func inWords(value any) string {
	if value == nil {
		return "-"
	}
	all := []rune(asJSON(value))
	if len(all) > maxWords {
		all = append(all[:maxWords-1], '…')
	}
	return string(all)
}

func asJSON(value any) string {
	text, err := json.Marshal(value)
	if err != nil {
		return err.Error()
	}
	return string(text)
}
