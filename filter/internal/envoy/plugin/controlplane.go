//go:build tinygo

package plugin

import (
	"strconv"

	"github.com/weir-proxy/weir/filter/internal/envoy/host"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/wire"
)

// controlPlane calls the control plane through an Envoy cluster. It implements rpc.Client and
// configsync.Poller.
type controlPlane struct {
	plugin  *pluginContext
	cluster string
	get     [][2]string
	post    [][2]string
}

// newControlPlane returns the calls to a control plane, with the headers of all requests prepared.
func newControlPlane(p *pluginContext, cp *policy.ControlPlane, token string) *controlPlane {
	request := func(method string) [][2]string {
		return [][2]string{
			{":method", method}, {":path", ""}, {":authority", cp.Authority}, {":scheme", "http"},
			{"authorization", "Bearer " + token}, {"accept", wire.ContentType},
		}
	}
	return &controlPlane{
		plugin: p, cluster: cp.Cluster,
		post: append(request("POST"), [2]string{"content-type", wire.ContentType}),
		get:  request("GET"),
	}
}

// Call implements rpc.Client. An answer may bring tokens or places, so waiting requests go on after
// it.
func (cp *controlPlane) Call(
	path string, message []byte, timeout quota.Span, done func(status int, answer []byte),
) error {
	cp.post[1][1] = path
	return host.Call(cp.plugin.id, cp.cluster, cp.post, message, timeout, func(status int, answer []byte) {
		done(status, answer)
		cp.plugin.room = atOnce
		cp.plugin.resumeResolved()
		cp.plugin.wake()
	})
}

// PollSnapshot implements configsync.Poller. Each poll also sends and receives the number of nodes
// that share the buckets.
func (cp *controlPlane) PollSnapshot(path []byte, timeout quota.Span, done func(status int, mark, body []byte)) error {
	leases := cp.plugin.central.leasing
	cp.get[1][1] = string(strconv.AppendInt(append(path, "&nodes="...), leases.Nodes(), 10))
	return host.Call(cp.plugin.id, cp.cluster, cp.get, nil, timeout, func(status int, body []byte) {
		cp.plugin.report() // The answer may replace the rules that have counted.
		leases.HearNodes(host.CallHeader("weir-nodes"))
		done(status, host.CallHeader("weir-mark"), body)
		cp.plugin.wake()
	})
}
