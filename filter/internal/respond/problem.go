package respond

import (
	"unsafe"

	"github.com/weir-proxy/weir/filter/internal/limiter"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/ratelimitheader"
	"github.com/weir-proxy/weir/shared/refusal"
	"github.com/weir-proxy/weir/shared/text"
)

// aboutOf is what was refused, and why.
func aboutOf(req *limiter.Request) refusal.About {
	ix, hit := &req.Rules().Index, &req.Hits[req.Refusing]
	return refusal.About{
		Reason: req.Reason, Source: req.Source, Policy: ix.Text(ix.Policy(hit.Policy).Name), After: ix.After(&hit.Hit),
		Limit: req.LimitOf(&hit.Hit), Cost: hit.Cost, Left: hit.Remaining, Elsewhere: hit.Elsewhere(),
	}
}

// WriteBan makes the answer to a banned caller, by the Unix time in microseconds. It names what is
// banned and, if it ends by itself, when, and nothing else. Envoy makes the body the message of a
// gRPC status.
func (r *Refusal) WriteBan(req *limiter.Request, wall int64, grpc bool) {
	r.Headers.Reset()
	ban, kind, retry := req.Ban, &refusal.Kinds[policy.ReasonAbsent], int64(0)
	own := req.Rules().Index.Response(policy.AnswerBan)
	r.Status, r.GRPC, r.Body = kind.Status, kind.GRPC, r.Body[:0]
	if req.BanEnds > 0 {
		left := quota.Span(req.BanEnds)*quota.Millisecond - quota.Span(wall)
		retry = max(ratelimitheader.Seconds(left), 1)
		r.Headers.number("retry-after", retry)
	}
	r.Headers.add("cache-control", "no-store")
	switch {
	case r.writeOwn(&own, req, retry, grpc):
	case grpc:
		r.put(refusal.Bans[ban])
	default:
		r.begin(kind)
		r.put(refusal.Bans[ban])
		r.put("\"}\n")
	}
}

// put appends to the body.
//
//go:noinline
func (r *Refusal) put(s string) { r.Body = text.Append(r.Body, s) }

// putInt appends a number to the body, behind a text.
//
//go:noinline
func (r *Refusal) putInt(before string, n int64) {
	r.put(before)
	r.Body = ratelimitheader.AppendInt(r.Body, n)
}

// view is b as a string, good for as long as b stays as it is.
func view(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }

// begin writes the beginning of problem+json, up to the detail.
func (r *Refusal) begin(kind *refusal.Kind) {
	r.Headers.add("content-type", "application/problem+json")
	r.put(`{"type":"`)
	r.put(kind.Type)
	r.put(`","title":"`)
	r.put(kind.Title)
	r.putInt(`","status":`, int64(r.Status))
	r.put(`,"detail":"`)
}

// writeProblem writes problem+json (RFC 9457). Everything in it is a number or comes from the
// operator, so it needs no escaping: validation keeps the names of policies and tiers plain.
func (r *Refusal) writeProblem(about *refusal.About, req *limiter.Request, hit *limiter.Hit, retry int64) {
	l := about.Limit
	r.begin(about.Kind())
	r.Body = about.AppendSentence(r.Body, retry)
	r.put(`","violated-policies":["`)
	r.put(view(name(req, req.Refusing)))
	r.put(`"]`)
	if req.Reason != policy.ReasonShed { // Its limit is another at each moment.
		r.putInt(`,"limit":`, l.Quota)
	}
	if !l.InFlight {
		r.put(`,"window":"`)
		r.Body = policy.AppendSpan(r.Body, l.Window)
		r.put(`"`)
	}
	if tier := req.Rules().Index.Tier(hit.Tier); len(tier) > 0 {
		r.put(`,"tier":"`)
		r.put(view(tier))
		r.put(`"`)
	}
	if retry > 0 {
		r.putInt(`,"retry_after":`, retry)
	}
	r.put("}\n")
}
