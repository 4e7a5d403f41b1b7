//go:build tinygo

package plugin

import (
	"github.com/weir-proxy/weir/filter/internal/host"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/wire"
)

// controlPlane calls the control plane through an Envoy cluster. It is leasing's, consumers', ladder's and samples' Caller and configsync's
// Poller.
type controlPlane struct {
	plugin  *pluginContext
	cluster string
	get     [][2]string
	post    [][2]string
}

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

// CallLeases implements leasing.Caller.
func (cp *controlPlane) CallLeases(body []byte, timeout quota.Span, done func(status int, body []byte)) error {
	return cp.call("/node/v1/leases?reply=3", body, timeout, func(status int, body []byte) {
		done(status, body)
		cp.plugin.resumeResolved(nil)
	})
}

// CallConsumers implements consumers.Caller.
func (cp *controlPlane) CallConsumers(body []byte, timeout quota.Span, done func(status int, body []byte)) error {
	return cp.call("/node/v1/consumers?format=2", body, timeout, done)
}

// CallReport implements ladder.Caller.
func (cp *controlPlane) CallReport(body []byte, timeout quota.Span, done func(status int, body []byte)) error {
	return cp.call("/node/v1/report", body, timeout, done)
}

// CallDecisions implements samples.Caller.
func (cp *controlPlane) CallDecisions(body []byte, timeout quota.Span, done func(status int, body []byte)) error {
	return cp.call("/node/v1/decisions", body, timeout, done)
}

func (cp *controlPlane) call(path string, body []byte, timeout quota.Span, done func(status int, body []byte)) error {
	cp.post[1][1] = path
	return host.Call(cp.plugin.id, cp.cluster, cp.post, body, timeout, done)
}

// PollSnapshot implements configsync.Poller.
func (cp *controlPlane) PollSnapshot(path []byte, timeout quota.Span, done func(status int, mark, body []byte)) error {
	cp.get[1][1] = string(path)
	return host.Call(cp.plugin.id, cp.cluster, cp.get, nil, timeout, func(status int, body []byte) {
		cp.plugin.report() // The answer may put other rules in the place of those that have counted.
		done(status, host.CallHeader("weir-mark"), body)
	})
}
