//go:build tinygo

package plugin

import (
	"github.com/weir-proxy/weir/filter/internal/host"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/wire"
)

// controlPlane calls the control plane through an Envoy cluster. It is leasing's and consumers' Caller and configsync's Poller.
type controlPlane struct {
	plugin  *pluginContext
	cluster string
	lease   [][2]string
	ask     [][2]string
	poll    [][2]string
}

func newControlPlane(p *pluginContext, cp *policy.ControlPlane, token string) *controlPlane {
	request := func(method, path string) [][2]string {
		return [][2]string{
			{":method", method}, {":path", path}, {":authority", cp.Authority}, {":scheme", "http"},
			{"authorization", "Bearer " + token}, {"accept", wire.ContentType},
		}
	}
	return &controlPlane{
		plugin: p, cluster: cp.Cluster,
		lease: append(request("POST", "/node/v1/leases"), [2]string{"content-type", wire.ContentType}),
		ask:   append(request("POST", "/node/v1/consumers"), [2]string{"content-type", wire.ContentType}),
		poll:  request("GET", ""),
	}
}

// CallLeases implements leasing.Caller.
func (cp *controlPlane) CallLeases(body []byte, timeout quota.Span, done func(status int, body []byte)) error {
	return host.Call(cp.plugin.id, cp.cluster, cp.lease, body, timeout, func(status int, body []byte) {
		done(status, body)
		cp.plugin.resumeResolved(nil)
	})
}

// CallConsumers implements consumers.Caller.
func (cp *controlPlane) CallConsumers(body []byte, timeout quota.Span, done func(status int, body []byte)) error {
	return host.Call(cp.plugin.id, cp.cluster, cp.ask, body, timeout, done)
}

// PollSnapshot implements configsync.Poller.
func (cp *controlPlane) PollSnapshot(path []byte, timeout quota.Span, done func(status int, body []byte)) error {
	cp.poll[1][1] = string(path)
	return host.Call(cp.plugin.id, cp.cluster, cp.poll, nil, timeout, func(status int, body []byte) {
		cp.plugin.report() // The answer may put other rules in the place of those that have counted.
		done(status, body)
	})
}
