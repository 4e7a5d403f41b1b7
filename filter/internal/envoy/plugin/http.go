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
	// asking is since when it waits for the control plane's tokens, 0 if it does not.
	asking quota.Instant
	// life is what became so far of a request that is Lasting.
	life limiter.Life
	// kept: find knows it. next is the following one of its list, or of those to spare.
	kept bool
	next *httpContext
	// identity is who made a request that waits: its attributes are gone when it goes on.
	identity wire.Identity
}

func (c *httpContext) onRequestHeaders() types.Action {
	p := c.plugin
	if p.timer.Slow() {
		p.catchUp(c)
	}
	rules := p.sync.Rules()
	if rules == nil { // Another VM may have had it since this one's last tick.
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
		c.decided(now)
	}
	return c.act(status, now, &attributes)
}

// resume goes on after a ticket or a seat has ended; the stream is the selected one.
func (c *httpContext) resume() {
	now := c.plugin.clock.Now()
	status := c.plugin.limiter.Resume(&c.request, now)
	if status == limiter.Paused {
		c.noteAsking(now)
		return
	}
	c.waiting = false
	c.decided(now)
	if c.act(status, now, nil) == types.ActionContinue {
		host.Resume()
	}
}

// send goes on with a delayed request whose turn has come.
func (c *httpContext) send() {
	now := c.plugin.clock.Now()
	c.waiting, c.life.Sent = false, now
	c.plugin.limiter.NoteSent(&c.request, now)
	host.Resume()
}

// noteAsking notes since when the request waits for tokens, if it does.
func (c *httpContext) noteAsking(now quota.Instant) {
	if c.asking == 0 && c.request.Asked() {
		c.asking = now
	}
}

// decided records how long a request was held that is now decided.
func (c *httpContext) decided(now quota.Instant) {
	if c.asking != 0 {
		c.request.CountWait(c.held(now))
	}
}

// held records how long the request was held for tokens that came, or that its client did not wait
// for.
func (c *httpContext) held(now quota.Instant) (milliseconds int64) {
	milliseconds = (int64(now-c.asking) + millisecond - 1) / millisecond
	c.plugin.metrics.hold.Record(uint64(milliseconds))
	c.asking = 0
	return milliseconds
}

// act does what a decision made at now asks for and reports whether the request goes on. Its
// attributes are nil if they are gone.
func (c *httpContext) act(status limiter.Status, now quota.Instant, a *match.Attributes) types.Action {
	p := c.plugin
	if p.penalties.Unnamed() {
		c.name(a)
	}
	if c.request.Names() {
		c.identify(a)
		c.request.NameTrials(&c.identity)
	}
	wall := int64(now) + int64(p.limiter.Ahead)
	c.life.Sent = now
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
		return c.reply("banned")
	}
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
	return c.reply(c.request.Reason.String())
}

// logCosts leaves the costs that are known later for the access log, if there are any. Envoy writes
// that before the stream ends for the filter.
func (c *httpContext) logCosts() {
	if len(c.request.Costs) > 0 {
		c.plugin.scratch = respond.AppendCosts(c.plugin.scratch[:0], &c.request)
		host.SetFilterState("weir.cost", c.plugin.scratch)
	}
}

// name says to the penalties that the request has begun whose they are. Its attributes are nil if
// they are gone.
func (c *httpContext) name(a *match.Attributes) {
	p := c.plugin
	c.identify(a)
	p.penalties.Name(&c.identity)
	p.wake() // The report leaves soon.
}

// identify notes who made the request. Its attributes are nil if they are gone, and it was noted
// before.
func (c *httpContext) identify(a *match.Attributes) {
	if a != nil && c.plugin.central != nil {
		c.plugin.central.decisions.Identify(c.request.Rules(), a, &c.identity)
	}
}

// reply answers the request with the refusal that was written, for this reason.
func (c *httpContext) reply(reason string) types.Action {
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

// onResponseHeaders runs for the filter's own refusals too; those have their headers.
func (c *httpContext) onResponseHeaders() {
	for i := range c.headers.Len() { // Each look costs a call.
		if name, _ := c.headers.At(i); dialect.IsSign(name) && len(host.ResponseHeader(name)) > 0 {
			c.yield()
			break
		}
	}
	for i := range c.headers.Len() {
		name, value := c.headers.At(i)
		host.SetResponseHeader(name, value)
	}
}

// yield settles whose limits the client sees, the upstream's or ours. A header of the upstream may
// have several lines, of which setting one would replace the first.
func (c *httpContext) yield() {
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
		c.held(now)
	}
	c.plugin.limiter.Cancel(&c.request, now)
	c.plugin.wakeForPlaces(now)
}

// grpcKind is how a caller speaks gRPC.
type grpcKind uint8

const (
	noGRPC grpcKind = iota
	plainGRPC
	// webGRPC is that of browsers, which Envoy takes for HTTP, textGRPC the same in Base64.
	webGRPC
	textGRPC
)

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

// removeForged keeps what only a limiter may say from reaching the upstream in a client's words.
func removeForged(headers []match.Header) {
	for _, h := range headers {
		if dialect.FamilyOf(h.Name) != 0 {
			host.RemoveRequestHeader(h.Name)
		}
	}
}

// head is the head of the response at hand.
type head struct{ *pluginContext }

// Header implements limiter.Answer.
func (head) Header(name string) []byte { return host.ResponseHeader(name) }

// Once implements limiter.Answer.
func (h head) Once(name string) []byte { return h.once(host.ResponseHeaders(), name) }

// trailers are those of the response at hand.
type trailers struct{ *pluginContext }

// Header implements limiter.Answer.
func (trailers) Header(name string) []byte { return host.ResponseTrailer(name) }

// Once implements limiter.Answer.
func (t trailers) Once(name string) []byte { return t.once(host.ResponseTrailers(), name) }

// once is the value of a header that pairs have once.
func (p *pluginContext) once(pairs []byte, name string) []byte {
	headers, _ := p.classifier.Decode(pairs)
	return match.Only(headers, name)
}
