package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"time"

	"github.com/weir-proxy/weir/controlplane/internal/serve/api"
)

type listConsumers struct {
	getFlags
	Banned bool   `help:"Only banned consumers."`
	Tier   string `help:"Only consumers with this tier." placeholder:"TIER"`
}

// Run prints all that are wanted, page by page, however many there are.
func (c *listConsumers) Run(env *environment) error {
	path := withQuery("/v1/consumers", map[string]string{"banned": ifTrue(c.Banned), "tier": c.Tier})
	all := []api.ConsumerAnswer{}
	err := c.readPages(path, func(body []byte) (string, error) {
		var page api.ConsumersAnswer
		err := json.Unmarshal(body, &page)
		all = append(all, page.Consumers...)
		return page.Next, err
	})
	if err != nil {
		return err
	}
	if c.Output == "json" {
		return printJSON(env.Out, map[string]any{"consumers": all})
	}
	return printTable(env.Out, "KEY\tTIER\tBANNED\tBYPASS\tOVERRIDES\tCHANGED\tBY", func(w io.Writer) {
		for _, one := range all {
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%d\t%s\t%s\n", one.Key, one.Tier,
				banOf(shortMark(one.Banned), one.Lifted),
				shortMark(one.Bypass), len(one.Overrides),
				one.Updated.Format(time.RFC3339), one.By)
		}
	})
}

// shortMark returns the end of a mark; empty without a mark.
func shortMark(m *api.ConsumerMark) string {
	switch {
	case m == nil:
		return ""
	case m.ExpiresAt == nil:
		return "yes"
	}
	return "until " + m.ExpiresAt.Format(time.RFC3339)
}
