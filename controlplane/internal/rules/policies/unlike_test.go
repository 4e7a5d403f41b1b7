package policies_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/weir-proxy/weir/controlplane/internal/rules/policies"
	"github.com/weir-proxy/weir/controlplane/internal/rules/policydoc"
)

const toCompare = `version: weir/v1
identity: {consumer: [{header: x-api-key}], default_tier: free}
tiers: [free, gold]
exempt: {methods: [HEAD]}
policies:
  - {name: api, match: {paths: [/api/**]}, partition: [client_ip], if_absent: shared, limit: {quota: 9, window: 1m}}
  - {name: user, partition: [consumer], limit: {quota: 9, window: 1m}}
`

// A policy is compared with itself in another version only where both decide the same requests.
func TestPoliciesThatAreUnlike(t *testing.T) {
	was, err := policydoc.Load([]byte(toCompare), policydoc.YAML)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ text, with, unlike string }{
		{"quota: 9", "quota: 2", ""},
		{"window: 1m", "window: 1h", ""},
		{"if_absent: shared", "if_absent: shared, mode: local", ""},
		{"name: user", "name: other", ""},
		{"partition: [client_ip]", "partition: [client_ip, method]", ""},
		{"partition: [consumer]", "partition: [consumer, method]", "user"},
		{"partition: [consumer]", "partition: [consumer], if_absent: deny", "user"},
		{"/api/**", "/api/login", "api"},
		{"if_absent: shared, limit: {quota: 9, window: 1m}",
			"if_absent: shared, limits: {free: {quota: 9, window: 1m}, gold: unlimited}", "api"},
		{"[HEAD]", "[HEAD, GET]", "api user"},
		{"exempt:", "banned: {client_ips: [10.0.0.0/8]}\nexempt:", "api user"},
		{"x-api-key", "x-key", "api user"},
	} {
		is, err := policydoc.Load([]byte(strings.Replace(toCompare, c.text, c.with, 1)), policydoc.YAML)
		if err != nil {
			t.Fatalf("%s: %v", c.with, err)
		}
		want := map[string]bool{}
		for _, name := range strings.Fields(c.unlike) {
			want[name] = true
		}
		if got := policies.Unlike(was, is); fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("with %s: %v, want %v", c.with, got, want)
		}
	}
}
