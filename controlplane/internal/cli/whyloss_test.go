package cli

import (
	"strings"
	"testing"

	"github.com/weir-proxy/weir/controlplane/internal/observe/decisions"
)

// A limit of requests in flight has lost no use of the caller's: its places are elsewhere.
func TestWhySaysThatPlacesAreElsewhere(t *testing.T) {
	for limit, want := range map[string]bool{"4 in flight": true, "4 per 1m": false} {
		var out strings.Builder
		explainRefusal(&out, &decisions.Decision{Reason: "failure", Source: "cached_denial", Limit: limit})
		if strings.Contains(out.String(), "belong to other Envoys") != want ||
			strings.Contains(out.String(), "has lost this caller") == want {
			t.Errorf("%s: %s", limit, out.String())
		}
	}
}

// A refusal because a store lost counters is no failure to reach the store, unlike refusals of
// other sources.
func TestWhySaysThatCountersWereLost(t *testing.T) {
	for source, lost := range map[string]bool{"central": true, "lease": true, "cached_denial": true,
		"share": false, "failure_deny": false} {
		var out strings.Builder
		explainRefusal(&out, &decisions.Decision{Reason: "failure", Source: source})
		if strings.Contains(out.String(), "has lost this caller") != lost ||
			strings.Contains(out.String(), "could not be reached") == lost {
			t.Errorf("%s: %s", source, out.String())
		}
	}
}
