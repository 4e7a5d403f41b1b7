//go:build tinygo

package plugin

import (
	"github.com/tetratelabs/proxy-wasm-go-sdk/proxywasm/types"

	"github.com/weir-proxy/weir/filter/internal/answer/respond"
	"github.com/weir-proxy/weir/filter/internal/decide/limiter"
	"github.com/weir-proxy/weir/filter/internal/envoy/host"
	"github.com/weir-proxy/weir/shared/classify"
	"github.com/weir-proxy/weir/shared/dialect"
	"github.com/weir-proxy/weir/shared/match"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/text"
	"github.com/weir-proxy/weir/shared/wire"
)

// httpContext is one request.
type httpContext struct {
	plugin  *pluginContext
	request limiter.Request
	headers respond.Headers
	grpc    grpcKind
	// waiting: the request is held back, for its tokens, its turn or a place in flight.
	waiting bool
	// asking is when the request began to wait for tokens of the control plane, 0 if it does not
	// wait for them.
	asking quota.Instant
	// life is the course so far of a Lasting request.
	life limiter.Life
	// kept: findStream finds the context. next is the next context in its list, or in
	// streams.spare.
	kept bool
	next *httpContext
	// identity is the caller of a request that waits: the request's attributes are gone when it
	// goes on.
	identity wire.Identity
}

// onRequestHeaders decides the request.
func (c *httpContext) onRequestHeaders() types.Action {
	p := c.plugin
	if p.timer.Slow() {
		p.catchUp(c)
	}
	// Find the rules. Without rules the request passes.
	rules := p.sync.Rules()
	if rules == nil { // Another VM may have loaded rules since this VM's last tick.
		p.sync.Follow()
		rules = p.sync.Rules()
	}
	if rules == nil {
		if attributes, ok := p.classifier.Classify(host.RequestHeaders(), nil, classify.Rules{}); ok {
			removeForged(attributes.Headers)
		}
		p.passBeforeSnapshot()
		return types.ActionContinue
	}
	// Read the request's attributes.
	var source []byte
	if rules.Index.NeedsClientIP() {
		source = host.Property("source\x00address")
	}
	attributes, ok := p.classifier.Classify(host.RequestHeaders(), source, classify.RulesOf(&rules.Index))
	if p.classifier.Surprising == 1 && !p.warned {
		p.warned = true
		host.Warn("weir: Envoy does not append the peer to x-forwarded-for, so clients can choose their address: set " +
			"use_remote_address, or identity.client_ip.appended: false")
	}
	if !ok {
		p.passed.unreadable++
		return types.ActionContinue
	}
	attributes.Properties = host.Properties{}
	if p.central != nil {
		attributes.Consumers = p.central.consumers
	}
	c.grpc = grpcKindOf(attributes.Headers)
	// Decide, or hold the request until it is decided.
	now := p.clock.Now()
	status := p.limiter.Begin(&c.request, rules, &attributes, now)
	removeForged(attributes.Headers)
	if status == limiter.Paused {
		if p.central != nil {
			p.central.decisions.Identify(rules, &attributes, &c.identity)
		}
		c.waiting = true
		c.noteAsking(now)
		status = p.resumeOwn(c)
		if status == limiter.Paused {
			return types.ActionPause
		}
		c.waiting = false
		c.countHeld(now)
	}
	return c.carryOut(status, now, &attributes)
}

// resumeRequest continues the request after a ticket or a seat has ended. Its stream must be
// selected.
func (c *httpContext) resumeRequest() {
	now := c.plugin.clock.Now()
	status := c.plugin.limiter.Resume(&c.request, now)
	if status == limiter.Paused {
		c.noteAsking(now)
		return
	}
	c.waiting = false
	c.countHeld(now)
	if c.carryOut(status, now, nil) == types.ActionContinue {
		host.Resume()
	}
}

// release continues a delayed request whose turn has come.
func (c *httpContext) release() {
	now := c.plugin.clock.Now()
	c.waiting, c.life.Sent = false, now
	c.plugin.limiter.NoteSent(&c.request, now)
	host.Resume()
}

// noteAsking notes when the request begins to wait for tokens, if it does.
func (c *httpContext) noteAsking(now quota.Instant) {
	if c.asking == 0 && c.request.Asked() {
		c.asking = now
	}
}

// countHeld counts the time for which a decided request was held.
func (c *httpContext) countHeld(now quota.Instant) {
	if c.asking != 0 {
		c.request.CountWait(c.recordHeld(now))
	}
}

// recordHeld records the time for which the request was held until its tokens came or its client
// went away.
func (c *httpContext) recordHeld(now quota.Instant) (milliseconds int64) {
	milliseconds = (int64(now-c.asking) + millisecond - 1) / millisecond
	c.plugin.metrics.hold.Record(uint64(milliseconds))
	c.asking = 0
	return milliseconds
}

// carryOut carries out a decision made at now, and reports whether the request goes on. Attributes
// are nil if they are gone.
func (c *httpContext) carryOut(status limiter.Status, now quota.Instant, a *match.Attributes) types.Action {
	p := c.plugin
	// Penalties need the caller's identity.
	if p.penalties.Unnamed() {
		c.namePenalties(a)
	}
	if c.request.Names() {
		c.setIdentity(a)
		c.request.NameTrials(&c.identity)
	}
	wall := int64(now) + int64(p.limiter.Ahead)
	c.life.Sent = now
	// Requests that no bucket decided.
	switch status {
	case limiter.Unlimited:
		c.logCosts()
		return types.ActionContinue
	case limiter.Bypassed:
		host.SetFilterState("weir.decision", append(p.scratch[:0], "bypassed"...))
		return types.ActionContinue
	case limiter.Banned:
		host.SetFilterState("weir.decision", append(p.scratch[:0], "banned"...))
		if p.central != nil {
			p.central.decisions.Banned(&c.request, a, &c.identity, now)
		}
		p.refusal.WriteBan(&c.request, wall, c.grpc != noGRPC)
		return c.replyRefusal("banned")
	}
	// Write the decision for the access log and the reports.
	p.scratch = respond.AppendDecision(p.scratch[:0], &c.request, status)
	host.SetFilterState("weir.decision", p.scratch)
	if p.central != nil {
		p.central.decisions.Decided(&c.request, a, &c.identity)
	}
	c.logCosts()
	switch status {
	case limiter.Allowed:
		c.headers.Limits(&c.request, false, 0, wall)
		p.leftOut += uint64(c.headers.LeftOut)
		return types.ActionContinue
	case limiter.Delayed:
		c.headers.Limits(&c.request, false, 0, wall+int64(c.request.Delay))
		p.leftOut += uint64(c.headers.LeftOut)
		c.waiting, c.life.Sent = true, 0
		p.hasten(now + quota.Instant(c.request.Delay))
		return types.ActionPause
	}
	if p.central != nil {
		p.central.decisions.Refused(&c.request, a, &c.identity, now)
	}
	p.refusal.Write(&c.request, now, wall, c.grpc != noGRPC)
	p.leftOut += uint64(p.refusal.Headers.LeftOut)
	return c.replyRefusal(c.request.Reason.String())
}

// logCosts writes the costs that become known later into the filter state for the access log, if
// there are any. Envoy writes the access log before the stream ends for the filter.
func (c *httpContext) logCosts() {
	if len(c.request.Costs) > 0 {
		c.plugin.scratch = respond.AppendCosts(c.plugin.scratch[:0], &c.request)
		host.SetFilterState("weir.cost", c.plugin.scratch)
	}
}

// namePenalties gives the caller's identity to the penalties that the request has begun. Attributes
// are nil if they are gone.
func (c *httpContext) namePenalties(a *match.Attributes) {
	p := c.plugin
	c.setIdentity(a)
	p.penalties.Name(&c.identity)
	p.wake() // The report leaves soon.
}

// setIdentity sets the identity of the request's caller. If attributes are nil, the identity was
// set before.
func (c *httpContext) setIdentity(a *match.Attributes) {
	if a != nil && c.plugin.central != nil {
		c.plugin.central.decisions.Identify(c.request.Rules(), a, &c.identity)
	}
}

// replyRefusal answers the request with the written refusal, for this reason.
func (c *httpContext) replyRefusal(reason string) types.Action {
	p := c.plugin
	r, grpcStatus := &p.refusal, int32(-1)
	switch c.grpc {
	case plainGRPC:
		grpcStatus = r.GRPC
	case webGRPC, textGRPC:
		r.ForWeb(c.grpc == textGRPC)
	}
	p.scratch = r.Headers.AppendPairs(p.scratch[:0])
	p.details = append(append(p.details[:0], "weir_"...), reason...)
	host.Reply(r.Status, p.details, p.scratch, r.Body, grpcStatus)
	return types.ActionPause
}

// onResponseHeaders adds the limit headers. It runs for the filter's own refusals too, which have
// their headers already.
func (c *httpContext) onResponseHeaders() {
	for i := range c.headers.Len() { // Each look costs a call.
		if name, _ := c.headers.At(i); dialect.IsSign(name) && len(host.ResponseHeader(name)) > 0 {
			c.yieldHeaders()
			break
		}
	}
	for i := range c.headers.Len() {
		name, value := c.headers.At(i)
		host.SetResponseHeader(name, value)
	}
}

// yieldHeaders decides whose limits the client sees: the upstream's or the filter's. A header of
// the upstream may have several lines, and to set the header would replace only the first line.
func (c *httpContext) yieldHeaders() {
	theirs, _ := c.plugin.classifier.Decode(host.ResponseHeaders())
	for _, h := range c.headers.YieldTo(theirs) {
		host.RemoveResponseHeader(h.Name)
	}
}

// onDone runs when the stream is over, also when its client went away.
func (c *httpContext) onDone() {
	if !c.waiting {
		if c.request.Lasting {
			c.life.Ended = c.plugin.clock.Now()
			c.life.Properties = host.Properties{}
			c.plugin.limiter.End(&c.request, c.life)
			c.plugin.wakeForPlaces(c.life.Ended)
			c.plugin.wakeForGuards()
		}
		return
	}
	now := c.plugin.clock.Now()
	if c.asking != 0 {
		c.recordHeld(now)
	}
	c.plugin.limiter.Cancel(&c.request, now)
	c.plugin.wakeForPlaces(now)
}

// grpcKind is the form of gRPC that a caller uses.
type grpcKind uint8

const (
	noGRPC grpcKind = iota
	plainGRPC
	// webGRPC is gRPC of browsers, which Envoy handles as HTTP. textGRPC is the same in Base64.
	webGRPC
	textGRPC
)

// grpcKindOf returns the form of gRPC from the content type.
func grpcKindOf(headers []match.Header) grpcKind {
	for _, h := range headers {
		switch {
		case !h.Is("content-type"):
		case text.HasPrefix(h.Value, "application/grpc-web-text"):
			return textGRPC
		case text.HasPrefix(h.Value, "application/grpc-web"):
			return webGRPC
		case text.HasPrefix(h.Value, "application/grpc"):
			return plainGRPC
		}
	}
	return noGRPC
}

// removeForged removes headers that only a limiter may set, so that a client's values never reach
// the upstream.
func removeForged(headers []match.Header) {
	for _, h := range headers {
		if dialect.FamilyOf(h.Name) != 0 {
			host.RemoveRequestHeader(h.Name)
		}
	}
}

// head is the head of the current response.
type head struct{ *pluginContext }

// Header implements limiter.Answer.
func (head) Header(name string) []byte { return host.ResponseHeader(name) }

// Once implements limiter.Answer.
func (h head) Once(name string) []byte { return h.onlyValue(host.ResponseHeaders(), name) }

// trailers are the trailers of the current response.
type trailers struct{ *pluginContext }

// Header implements limiter.Answer.
func (trailers) Header(name string) []byte { return host.ResponseTrailer(name) }

// Once implements limiter.Answer.
func (t trailers) Once(name string) []byte { return t.onlyValue(host.ResponseTrailers(), name) }

// onlyValue returns the value of a header that has only one line in pairs.
func (p *pluginContext) onlyValue(pairs []byte, name string) []byte {
	headers, _ := p.classifier.Decode(pairs)
	return match.Only(headers, name)
}
