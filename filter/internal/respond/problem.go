package respond

import (
	"github.com/weir-proxy/weir/filter/internal/limiter"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/ratelimitheader"
	"github.com/weir-proxy/weir/shared/refusal"
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
	ban := req.Ban
	r.Status, r.GRPC = 403, refusal.BanGRPC
	if req.BanEnds > 0 {
		left := quota.Span(req.BanEnds)*quota.Millisecond - quota.Span(wall)
		r.Headers.number("retry-after", max(ratelimitheader.Seconds(left), 1))
	}
	r.Headers.add("cache-control", "no-store")
	if grpc {
		r.Body = append(r.Body[:0], refusal.Bans[ban]...)
		return
	}
	r.Headers.add("content-type", "application/problem+json")
	r.Body = append(r.Body[:0], `{"type":"about:blank","title":"Forbidden","status":403,"detail":"`...)
	r.Body = append(append(r.Body, refusal.Bans[ban]...), "\"}\n"...)
}

// writeProblem writes problem+json (RFC 9457). Everything in it is a number or comes from the
// operator, so it needs no escaping: validation keeps the names of policies and tiers plain.
func (r *Refusal) writeProblem(about *refusal.About, req *limiter.Request, hit *limiter.Hit, retry int64) {
	kind, l := about.Kind(), about.Limit
	b := append(append(r.Body, `{"type":"`...), kind.Type...)
	b = append(append(b, `","title":"`...), kind.Title...)
	b = ratelimitheader.AppendInt(append(b, `","status":`...), int64(r.Status))
	b = about.AppendSentence(append(b, `,"detail":"`...), retry)
	b = append(append(b, `","violated-policies":["`...), name(req, req.Refusing)...)
	b = append(b, `"]`...)
	if req.Reason != policy.ReasonShed { // Its limit is another at each moment.
		b = ratelimitheader.AppendInt(append(b, `,"limit":`...), l.Quota)
	}
	if !l.InFlight {
		b = append(policy.AppendSpan(append(b, `,"window":"`...), l.Window), '"')
	}
	if tier := req.Rules().Index.Tier(hit.Tier); len(tier) > 0 {
		b = append(append(append(b, `,"tier":"`...), tier...), '"')
	}
	if retry > 0 {
		b = ratelimitheader.AppendInt(append(b, `,"retry_after":`...), retry)
	}
	r.Body = append(b, "}\n"...)
}
