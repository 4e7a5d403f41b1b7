package api_test

import (
	"strings"
	"testing"

	"github.com/weir-proxy/weir/controlplane/internal/serve/api"
)

// An Envoy whose calls are refused lets everything pass, so it must be seen where nodes are.
func TestRefusedNodesAreListed(t *testing.T) {
	p := newPlane(t)
	nodesOf := func(query string) api.NodesAnswer {
		t.Helper()
		return decoded[api.NodesAnswer](t, p.do(call{"eyes", "GET", "/v1/nodes" + query, nil, ""}))
	}
	if a := nodesOf(""); a.Refused == nil || len(a.Refused) != 0 || a.Counts.Refused != 0 {
		t.Errorf("before any call: %+v", a.Refused)
	}
	for _, c := range []struct {
		call
		status int
		reason string
	}{
		{call{"nobody", "GET", "/node/v1/snapshot?node=edge%0A7", nil, ""}, 401, "its token is unknown"},
		{call{"", "GET", "/node/v1/snapshot?node=edge%0A7", nil, ""}, 401, "it shows no token"},
		{call{"eyes", "POST", "/node/v1/leases", nil, ""}, 403, "the token eyes has the role viewer, and not node"},
		{call{"envoy", "POST", "/node/v1/leases", nil, "x"}, 400, "the lease request cannot be read"},
	} {
		before := nodesOf("")
		if w := p.do(c.call); w.Code != c.status {
			t.Fatalf("%+v: %d %s", c.call, w.Code, w.Body)
		}
		after := nodesOf("")
		if len(after.Refused) != 1 || after.Counts.Refused != 1 || len(after.Nodes) != 0 {
			t.Fatalf("%+v: %+v", c.call, after)
		}
		one := after.Refused[0]
		if one.Address != "192.0.2.1" || one.Node != "edge?7" || !strings.HasPrefix(one.Reason, c.reason) ||
			!one.Active || one.Seen.Before(one.Since) {
			t.Errorf("%+v: %+v", c.call, one)
		}
		calls := int64(1)
		if len(before.Refused) > 0 {
			calls += before.Refused[0].Calls
		}
		if one.Calls != calls {
			t.Errorf("%+v: %d calls, want %d", c.call, one.Calls, calls)
		}
	}
	if a := nodesOf("?search=elsewhere"); len(a.Refused) != 0 || a.Counts.Refused != 1 {
		t.Errorf("a search for another: %+v, %+v", a.Refused, a.Counts)
	}
	// Mistakes of people do not count as mistakes of a node.
	p.do(call{"nobody", "GET", "/v1/nodes", nil, ""})
	if a := nodesOf(""); a.Refused[0].Calls != 4 {
		t.Errorf("a person's call counts as a node's: %+v", a.Refused)
	}
}
