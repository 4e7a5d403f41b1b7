package respond

import (
	"github.com/weir-proxy/weir/filter/internal/limiter"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/ratelimitheader"
)

// Refusal is an answer in the client's terms.
type Refusal struct {
	Status  uint32
	Headers Headers
	Body    []byte
	// GRPC is the gRPC status for gRPC callers.
	GRPC int32
}

// The gRPC statuses of refusals.
const (
	grpcInvalidArgument   = 3
	grpcPermissionDenied  = 7
	grpcResourceExhausted = 8
)

// Write makes the answer to a refused request. Now and wall are the same moment on the monotonic clock and as Unix time, in
// microseconds. A gRPC caller gets no body.
func (r *Refusal) Write(req *limiter.Request, now quota.Instant, wall int64, grpc bool) {
	r.Headers.Reset()
	r.Body = r.Body[:0]
	switch req.Reason {
	case limiter.Absent:
		r.Status, r.GRPC = 403, grpcPermissionDenied
	case limiter.BadCost:
		r.Status, r.GRPC = 400, grpcInvalidArgument
	default:
		r.Status, r.GRPC = 429, grpcResourceExhausted
	}
	hit := &req.Hits[req.Refusing]
	var retry int64
	if hit.Retry != quota.Never {
		retry = ratelimitheader.RetryAfter(hit.Retry, now+quota.Instant(hit.Retry), seed(hit))
		r.Headers.number("retry-after", retry)
	}
	r.Headers.add("cache-control", "no-store")
	if r.Status == 429 {
		r.Headers.Limits(req, true, retry, wall)
	}
	ix := &req.Rules().Index
	p := ix.Policy(hit.Policy)
	if r.Status == 429 && p.Status != 0 {
		r.Status = uint32(p.Status)
	}
	switch {
	case grpc:
	case p.Body.Len > 0:
		r.Headers.add("content-type", "text/plain; charset=utf-8")
		r.Body = append(r.Body, ix.Text(p.Body)...)
	default:
		r.Headers.add("content-type", "application/problem+json")
		r.writeBody(req, hit, retry)
	}
}

// WriteBan makes the answer to a banned caller. It says no more than that.
func (r *Refusal) WriteBan(grpc bool) {
	r.Headers.Reset()
	r.Body = r.Body[:0]
	r.Status, r.GRPC = 403, grpcPermissionDenied
	r.Headers.add("cache-control", "no-store")
	if !grpc {
		r.Headers.add("content-type", "application/problem+json")
		r.Body = append(r.Body, `{"type":"about:blank","title":"Forbidden","status":403,"detail":"Requests from this address are not served."}`+"\n"...)
	}
}

// seed is the bucket's own part of the spread of Retry-After.
func seed(hit *limiter.Hit) uint32 {
	return uint32(hit.Key[12]) | uint32(hit.Key[13])<<8 | uint32(hit.Key[14])<<16 | uint32(hit.Key[15])<<24
}

// writeBody writes problem+json (RFC 9457). Everything in it is the operator's or a number, so nothing needs escaping: the names
// of policies and tiers are validated to be plain.
func (r *Refusal) writeBody(req *limiter.Request, hit *limiter.Hit, retry int64) {
	ix := &req.Rules().Index
	p := ix.Policy(hit.Policy)
	name, l := ix.Text(p.Name), req.LimitOf(&hit.Hit)
	b := append(r.Body, `{"type":"`...)
	switch req.Reason {
	case limiter.Absent:
		b = around(b, `about:blank","title":"Forbidden","status":403,"detail":"Policy `, name,
			` needs to know whose request this is, and the request does not say.`)
	case limiter.BadCost:
		b = around(b, `about:blank","title":"Bad Request","status":400,"detail":"Policy `, name,
			` needs a cost, a whole number up to its maximum, and the request names none.`)
	default:
		b = append(b, `https://iana.org/assignments/http-problem-types#quota-exceeded","title":"Too Many Requests","status":`...)
		b = ratelimitheader.AppendInt(b, int64(r.Status))
		b = append(b, `,"detail":"`...)
		b = appendSentence(b, req.Reason, name, l, retry)
	}
	b = around(b, `","violated-policies":["`, name, `"],"limit":`)
	b = append(ratelimitheader.AppendInt(b, l.Quota), `,"window":"`...)
	b = append(policy.AppendSpan(b, l.Window), '"')
	if tier := ix.Tier(hit.Tier); len(tier) > 0 {
		b = append(append(append(b, `,"tier":"`...), tier...), '"')
	}
	if retry > 0 {
		b = ratelimitheader.AppendInt(append(b, `,"retry_after":`...), retry)
	}
	r.Body = append(b, "}\n"...)
}

// around appends a name between two texts, without a text of all three.
func around(b []byte, before string, name []byte, after string) []byte {
	return append(append(append(b, before...), name...), after...)
}

// appendSentence says in words why, and what to do.
func appendSentence(b []byte, reason limiter.Reason, name []byte, l *policy.Limit, retry int64) []byte {
	switch reason {
	case limiter.TooDear:
		return around(b, `This request costs more than policy `, name, ` ever allows at once; waiting does not help.`)
	case limiter.Quota:
		b = around(b, `Policy `, name, ` allows `)
		b = append(ratelimitheader.AppendInt(b, l.Quota), ` per `...)
		b = append(policy.AppendSpan(b, l.Window), `, and that is used up. Try again in `...)
	default:
		b = around(b, `Policy `, name, ` cannot be decided now. Try again in `)
	}
	b = ratelimitheader.AppendInt(b, retry)
	if retry == 1 {
		return append(b, ` second.`...)
	}
	return append(b, ` seconds.`...)
}

// AppendDecision appends the decision as access logs show it.
func AppendDecision(dst []byte, req *limiter.Request, status limiter.Status) []byte {
	ix := &req.Rules().Index
	shown := req.Refusing
	if status == limiter.Refused {
		dst = append(dst, "refused policy="...)
	} else {
		dst = append(dst, "allowed policy="...)
		shown = 0
		for i := range req.Hits {
			if req.Hits[i].Remaining < req.Hits[shown].Remaining {
				shown = i
			}
		}
	}
	hit := &req.Hits[shown]
	remaining := hit.Remaining
	dst = append(dst, ix.Text(ix.Policy(hit.Policy).Name)...)
	if status == limiter.Refused {
		remaining = hit.Left
		dst = append(append(dst, " reason="...), req.Reason.String()...)
		if hit.Retry != quota.Never {
			dst = ratelimitheader.AppendInt(append(dst, " retry_us="...), int64(hit.Retry))
		}
	}
	dst = ratelimitheader.AppendInt(append(dst, " remaining="...), remaining)
	if status == limiter.Delayed {
		dst = ratelimitheader.AppendInt(append(dst, " delayed_us="...), int64(req.Delay))
	}
	return dst
}
