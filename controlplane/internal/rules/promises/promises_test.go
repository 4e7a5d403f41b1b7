package promises_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/weir-proxy/weir/controlplane/internal/rules/promises"
	"github.com/weir-proxy/weir/shared/policy"
)

// Readers of the JSON get lists, also where there is nothing to say.
func TestListsAreNeverNull(t *testing.T) {
	text, err := json.Marshal(promises.Of(policy.Policy{Name: "a"}, &policy.Set{}, 1, 0))
	if err != nil || strings.Contains(string(text), "null") {
		t.Errorf("%s %v", text, err)
	}
}
