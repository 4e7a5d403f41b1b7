package api_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/weir-proxy/weir/controlplane/internal/serve/api"
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/wire"
)

// A node that speaks another protocol hears which side to upgrade, and the list of nodes says so.
func TestANodeOfAnotherProtocolIsRefused(t *testing.T) {
	p := newPlane(t)
	messages := map[string][]byte{
		"leases":    wire.AppendLeaseRequest(nil, wire.LeaseRequest{Node: "edge"}),
		"consumers": wire.AppendQuestion(nil, []keyhash.Key{{1}}),
		"report":    []byte(reported(&wire.Measures{Node: []byte("edge")})),
	}
	for number, want := range map[uint64]string{
		wire.Protocol + 1: "upgrade the control plane", wire.Oldest - 1: "upgrade the filter",
	} {
		for route, message := range messages {
			c := call{"envoy", "POST", "/node/v1/" + route, nil, string(wire.Answer(message, number))}
			if got := p.problem(p.do(c), 426, "other-protocol"); !strings.HasSuffix(got.Detail, want) {
				t.Errorf("%s of protocol %d: %s", route, number, got.Detail)
			}
		}
	}
	path := fmt.Sprintf("/node/v1/snapshot?node=edge&protocol=%d", wire.Protocol+1)
	answer := p.problem(p.do(call{"envoy", "GET", path, nil, ""}), 426, "other-protocol")
	if !strings.HasSuffix(answer.Detail, "upgrade the control plane") {
		t.Error(answer.Detail)
	}
	list := read[api.NodesAnswer](p, "/v1/nodes")
	if len(list.Refused) != 1 || list.Refused[0].Node != "edge" || list.Refused[0].Reason != answer.Detail {
		t.Errorf("listed as %+v", list.Refused)
	}
	p.problem(p.do(call{"envoy", "GET", "/node/v1/snapshot?node=edge&protocol=x", nil, ""}), 400, "bad-request")
}
