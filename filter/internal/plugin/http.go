//go:build tinygo

package plugin

import (
	"github.com/tetratelabs/proxy-wasm-go-sdk/proxywasm/types"

	"github.com/weir-proxy/weir/filter/internal/classify"
	"github.com/weir-proxy/weir/filter/internal/host"
	"github.com/weir-proxy/weir/filter/internal/limiter"
	"github.com/weir-proxy/weir/filter/internal/respond"
	"github.com/weir-proxy/weir/shared/match"
	"github.com/weir-proxy/weir/shared/wire"
)

// httpContext is one request.
type httpContext struct {
	types.DefaultHttpContext

	plugin  *pluginContext
	request limiter.Request
	headers respond.Headers
	grpc    bool
	// who made a request that waits: its attributes are gone when it goes on.
	who wire.Who
}

// OnHttpRequestHeaders implements types.HttpContext.
func (c *httpContext) OnHttpRequestHeaders(int, bool) types.Action {
	host.Begin()
	p := c.plugin
	rules := p.sync.Rules()
	if rules == nil {
		if attributes, ok := p.classifier.Classify(host.RequestHeaders(), nil, classify.Rules{}); ok {
			removeForged(attributes.Headers)
		}
		p.passBeforeSnapshot()
		return types.ActionContinue
	}
	var source []byte
	if rules.Index.NeedsClientIP() {
		source = host.Property("source\x00address")
	}
	attributes, ok := p.classifier.Classify(host.RequestHeaders(), source,
		classify.Rules{TrustedHops: rules.Index.TrustedHops(), IPv6Prefix: rules.Index.IPv6Prefix()})
	if !ok {
		p.passed.unreadable++
		return types.ActionContinue
	}
	attributes.Properties = host.Properties{}
	if p := c.plugin; p.people != nil {
		attributes.Consumers = p.people
	}
	c.grpc = isGRPC(attributes.Headers)
	status := p.limiter.Begin(&c.request, rules, &attributes, p.clock.Now())
	removeForged(attributes.Headers)
	if status == limiter.Paused {
		rules.Index.Describe(&attributes, true, &c.who)
		p.paused[c.request.Stream] = c
		if status = p.resumeResolved(c); status == limiter.Paused {
			return types.ActionPause
		}
		delete(p.paused, c.request.Stream)
	}
	return c.act(status, &attributes)
}

// resume goes on after a ticket has ended; the stream is the selected one.
func (c *httpContext) resume() {
	status := c.plugin.limiter.Resume(&c.request, c.plugin.clock.Now())
	if status == limiter.Paused {
		return
	}
	delete(c.plugin.paused, c.request.Stream)
	if c.act(status, nil) == types.ActionContinue {
		host.Resume()
	}
}

// act does what a decision asks for and says whether the request goes on. Its attributes are nil if they are gone.
func (c *httpContext) act(status limiter.Status, a *match.Attributes) types.Action {
	p := c.plugin
	switch status {
	case limiter.Unlimited:
		return types.ActionContinue
	case limiter.Banned:
		host.SetFilterState("weir.decision", append(p.scratch[:0], "banned"...))
		p.refusal.WriteBan(c.grpc)
		return c.reply("weir_banned")
	}
	p.scratch = respond.AppendDecision(p.scratch[:0], &c.request, status)
	host.SetFilterState("weir.decision", p.scratch)
	if p.samples != nil {
		p.samples.Decided(&c.request, a, &c.who)
	}
	switch status {
	case limiter.Allowed:
		c.headers.Limits(&c.request, false, 0, p.clock.Wall())
		return types.ActionContinue
	case limiter.Delayed:
		c.headers.Limits(&c.request, false, 0, p.clock.Wall()+int64(c.request.Delay))
		p.hold(c)
		return types.ActionPause
	}
	now := p.clock.Now()
	if p.samples != nil {
		p.samples.Refused(&c.request, a, &c.who, now)
	}
	p.refusal.Write(&c.request, now, p.clock.Wall(), c.grpc)
	return c.reply("weir_" + c.request.Reason.String())
}

// reply answers the request with the refusal that was written.
func (c *httpContext) reply(details string) types.Action {
	p := c.plugin
	r, grpcStatus := &p.refusal, int32(-1)
	if c.grpc {
		grpcStatus = r.GRPC
	}
	p.scratch = r.Headers.AppendPairs(p.scratch[:0])
	host.Reply(r.Status, details, p.scratch, r.Body, grpcStatus)
	return types.ActionPause
}

// OnHttpResponseHeaders implements types.HttpContext. It runs for the filter's own refusals too; those have their headers.
func (c *httpContext) OnHttpResponseHeaders(int, bool) types.Action {
	host.Begin()
	if c.headers.Len() > 0 {
		c.headers.YieldTo(host.ResponseHeader("ratelimit"), host.ResponseHeader("x-ratelimit-remaining"))
	}
	for i := range c.headers.Len() {
		name, value := c.headers.At(i)
		host.SetResponseHeader(name, value)
	}
	return types.ActionContinue
}

// OnHttpStreamDone implements types.HttpContext.
func (c *httpContext) OnHttpStreamDone() {
	if c.plugin.paused[c.request.Stream] == c {
		delete(c.plugin.paused, c.request.Stream)
		c.plugin.limiter.Cancel(&c.request, c.plugin.clock.Now())
	}
}

// isGRPC says whether the caller speaks gRPC.
func isGRPC(headers []match.Header) bool {
	for _, h := range headers {
		if h.Is("content-type") {
			return hasPrefix(h.Value, "application/grpc")
		}
	}
	return false
}

// removeForged keeps what only a limiter may say from reaching the upstream in a client's words.
func removeForged(headers []match.Header) {
	for _, h := range headers {
		if hasPrefix(h.Name, "ratelimit") || hasPrefix(h.Name, "x-ratelimit") {
			host.RemoveRequestHeader(h.Name)
		}
	}
}

func hasPrefix(b []byte, prefix string) bool {
	if len(b) < len(prefix) {
		return false
	}
	for i := range len(prefix) {
		if b[i] != prefix[i] {
			return false
		}
	}
	return true
}
