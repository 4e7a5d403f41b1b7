package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"

	"github.com/weir-proxy/weir/controlplane/internal/grant/regions"
)

type getRegions struct{ getFlags }

// Run prints the shares that are not as the weights say.
func (c *getRegions) Run(env *environment) error {
	// Get the view of this region.
	cl, err := c.newClient()
	if err != nil {
		return err
	}
	got, err := cl.do(http.MethodGet, "/v1/regions", nil, nil)
	if err != nil {
		return err
	}
	var view regions.View
	if err := json.Unmarshal(got.body, &view); err != nil {
		return fmt.Errorf("the answer to GET /v1/regions cannot be read: %w", err)
	}
	if c.Output == "json" {
		return printJSON(env.Out, view)
	}
	// Print the state of the sharing.
	fmt.Fprintf(env.Out, "This is %s. Weights: %s. ", view.Region, percents(view.Weights))
	switch {
	case view.Trouble != "":
		fmt.Fprintf(env.Out, "Shares do not move: %s.\n", view.Trouble)
	case view.Age < 0:
		fmt.Fprintln(env.Out, "The document of all regions has not been read yet.")
	default:
		fmt.Fprintf(env.Out, "The document of all regions was read %.0f s ago.\n", view.Age)
	}
	// Print the policies whose shares differ from the weights.
	names := maps.Clone(view.Held)
	for name := range view.Moved {
		if _, ok := names[name]; !ok {
			names[name] = view.Weights
		}
	}
	if len(names) == 0 {
		fmt.Fprintln(env.Out, "Every policy is split by the weights.")
		return nil
	}
	return printTable(env.Out, "POLICY\tUSED HERE\tHELD", func(w io.Writer) {
		for _, name := range slices.Sorted(maps.Keys(names)) {
			using := names[name][view.Region]
			if moved, ok := view.Moved[name]; ok {
				using = moved.Using
			}
			fmt.Fprintf(w, "%s\t%s\t%s\n", name, percent(using), percents(names[name]))
		}
	})
}

func percents(shares map[string]int64) string {
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(shares)) {
		parts = append(parts, name+" "+percent(shares[name]))
	}
	return strings.Join(parts, ", ")
}

func percent(share int64) string { return fmt.Sprintf("%.1f %%", 100*float64(share)/regions.Whole) }
