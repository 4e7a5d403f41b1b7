package respond

import (
	"github.com/weir-proxy/weir/filter/internal/limiter"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/ratelimitheader"
	"github.com/weir-proxy/weir/shared/text"
)

// Refusal is the answer that a refused client gets.
type Refusal struct {
	Status  uint32
	Headers Headers
	Body    []byte
	// GRPC is the gRPC status for gRPC callers.
	GRPC  int32
	frame []byte
}

// Write makes the answer to a refused request. Now and wall are the same moment on the monotonic
// clock and as Unix time, in microseconds. A gRPC caller gets the sentence as its body, which Envoy
// makes the message of the status.
func (r *Refusal) Write(req *limiter.Request, now quota.Instant, wall int64, grpc bool) {
	r.Headers.Reset()
	r.Body, r.Headers.LeftOut = r.Body[:0], 0
	about, hit, ix := aboutOf(req), &req.Hits[req.Refusing], &req.Rules().Index
	kind := about.Kind()
	r.Status, r.GRPC = kind.Status, kind.GRPC
	retry := retryAfter(req, now)
	if retry > 0 {
		r.Headers.number("retry-after", retry)
	}
	r.Headers.add("cache-control", "no-store")
	if kind.Marked && !ix.Headers().Unmarked {
		r.Headers.add("x-envoy-ratelimited", "true")
	}
	if r.Status == 429 {
		r.Headers.Limits(req, true, retry, wall)
	}
	p, own := ix.Policy(hit.Policy), ix.Response(about.Answer())
	if r.Status == 429 && p.Status != 0 {
		own.Status = p.Status
	}
	if p.Body.Len > 0 {
		own.Body, own.ContentType = p.Body, p.ContentType
	}
	switch {
	case r.writeOwn(&own, req, retry, grpc):
	case grpc:
		r.Body = about.AppendSentence(r.Body, retry)
	default:
		r.writeProblem(&about, req, hit, retry)
	}
}

// retryAfter is the wait in seconds that a refusal names in all its fields: until the request
// passes, rounded up and spread. It is 0 if waiting does not help.
func retryAfter(req *limiter.Request, now quota.Instant) int64 {
	hit := &req.Hits[req.Refusing]
	switch {
	case hit.Retry == quota.Never:
		return 0
	case req.Reason == policy.ReasonPenalty: // It ends when it says, and is spread already.
		return ratelimitheader.Seconds(hit.Retry)
	}
	return ratelimitheader.RetryAfter(hit.Retry, now+quota.Instant(hit.Retry), seed(hit))
}

// seed is the part of the spread of Retry-After that depends on the bucket.
func seed(hit *limiter.Hit) uint32 {
	return uint32(hit.Key[12]) | uint32(hit.Key[13])<<8 | uint32(hit.Key[14])<<16 | uint32(hit.Key[15])<<24
}

// AppendDecision appends the decision in the form for access logs. The wait in it is that of
// Retry-After before it is rounded up and spread.
func AppendDecision(dst []byte, req *limiter.Request, status limiter.Status) []byte {
	ix := &req.Rules().Index
	shown := req.Refusing
	if status == limiter.Refused {
		dst = text.Append(dst, "refused policy=")
	} else {
		dst = text.Append(dst, "allowed policy=")
		shown = 0
		for i := range req.Hits {
			if req.Hits[i].Remaining < req.Hits[shown].Remaining {
				shown = i
			}
		}
	}
	hit := &req.Hits[shown]
	dst = append(dst, ix.Text(ix.Policy(hit.Policy).Name)...)
	if status == limiter.Refused {
		dst = text.Append(text.Append(dst, " reason="), req.Reason.String())
		if hit.Retry != quota.Never {
			dst = ratelimitheader.AppendInt(text.Append(dst, " retry_us="), int64(hit.Retry))
		}
	}
	dst = ratelimitheader.AppendInt(text.Append(dst, " remaining="), hit.Remaining)
	if status == limiter.Delayed {
		dst = ratelimitheader.AppendInt(text.Append(dst, " delayed_us="), int64(req.Delay))
	}
	return dst
}

// AppendCosts appends what a request has reserved and what that has cost, in the form for access
// logs.
func AppendCosts(dst []byte, req *limiter.Request) []byte {
	for i, c := range req.Costs {
		if i > 0 {
			dst = text.Append(dst, "; ")
		}
		dst = ratelimitheader.AppendInt(text.Append(dst, "reserved="), c.Reserved)
		if c.Actual >= 0 {
			dst = ratelimitheader.AppendInt(text.Append(dst, " actual="), c.Actual)
		}
	}
	return dst
}
