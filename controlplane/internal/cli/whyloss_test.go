package cli

import (
	"strings"
	"testing"

	"github.com/weir-proxy/weir/controlplane/internal/decisions"
)

// A refusal by what a store has lost is no failure to reach it, which other sources are of.
func TestWhySaysThatCountersWereLost(t *testing.T) {
	for source, lost := range map[string]bool{"central": true, "lease": true, "cached_denial": true,
		"share": false, "failure_deny": false} {
		var out strings.Builder
		explain(&out, &decisions.Decision{Reason: "failure", Source: source})
		if strings.Contains(out.String(), "has lost how much") != lost ||
			strings.Contains(out.String(), "could not be reached") == lost {
			t.Errorf("%s: %s", source, out.String())
		}
	}
}
