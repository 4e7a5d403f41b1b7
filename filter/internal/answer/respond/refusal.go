package respond

import (
	"github.com/weir-proxy/weir/filter/internal/decide/limiter"
	"github.com/weir-proxy/weir/shared/answer"
	"github.com/weir-proxy/weir/shared/dialect"
	"github.com/weir-proxy/weir/shared/match"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/text"
	"github.com/weir-proxy/weir/shared/wire"
)

// Refusal is the answer to a refused client.
type Refusal struct {
	Status  uint32
	Headers Headers
	Body    []byte
	// GRPC is the gRPC status for gRPC callers.
	GRPC  int32
	body  answer.Body
	frame []byte
}

// Write makes the answer to a refused request. Now and wall are the same moment on the monotonic
// clock and as Unix time, in microseconds. A gRPC caller gets the sentence as its body; Envoy makes
// it the message of the status.
func (r *Refusal) Write(req *limiter.Request, now quota.Instant, wall int64, grpc bool) {
	r.Headers.Reset()
	r.Body, r.Headers.LeftOut = r.Body[:0], 0
	ix, hit := &req.Rules().Index, &req.Hits[req.Refusing]
	p := ix.Policy(hit.Policy)
	r.body = answer.Body{
		About: answer.About{
			Reason: req.Reason, Source: req.Source, Policy: ix.Text(p.Name), After: ix.After(&hit.Hit),
			Limit: req.LimitOf(&hit.Hit), Cost: hit.Cost, Left: hit.Remaining, Elsewhere: hit.Elsewhere(),
		},
		Name: nameOf(req, req.Refusing), Tier: ix.Tier(hit.Tier),
		Retry: answer.RetryAfter(req.Reason, hit.Retry, now, &hit.Hit), Reset: hit.Reset,
	}
	// The status and the headers.
	kind := r.body.Kind()
	r.Status, r.GRPC = kind.Status, kind.GRPC
	r.Headers.Refuse(r.body.Retry)
	if kind.Marked && !ix.Headers().Unmarked {
		r.Headers.Add("x-envoy-ratelimited", "true")
	}
	// The operator's own response: the set's, then the policy's fields.
	own := ix.Response(r.body.Answer())
	if r.Status == 429 {
		r.Headers.Limits(req, true, r.body.Retry, wall)
		if p.Status != 0 {
			own.Status = p.Status
		}
	}
	if p.Body.Len > 0 {
		own.Body, own.ContentType = p.Body, p.ContentType
	}
	// The body.
	switch {
	case r.writeOwn(&own, ix, grpc):
	case grpc:
		r.Body = r.body.AppendSentence(r.Body, r.body.Retry)
	default:
		r.Headers.Add("content-type", answer.ProblemType)
		r.Body = r.body.AppendProblem(r.Body, r.Status)
	}
}

// WriteBan makes the answer to a banned caller, at the Unix time wall in microseconds. It names the
// banned thing and the end of the ban, if it ends by itself, and nothing else. Envoy makes the body
// the message of a gRPC status.
func (r *Refusal) WriteBan(req *limiter.Request, wall int64, grpc bool) {
	r.Headers.Reset()
	ix, kind := &req.Rules().Index, &answer.Kinds[policy.ReasonAbsent]
	own := ix.Response(policy.AnswerBan)
	r.Status, r.GRPC, r.Body, r.body = kind.Status, kind.GRPC, r.Body[:0], answer.Body{}
	if req.BanEnds > 0 {
		left := quota.Span(req.BanEnds)*quota.Millisecond - quota.Span(wall)
		r.body.Retry = max(dialect.Seconds(left), 1)
	}
	r.Headers.Refuse(r.body.Retry)
	switch {
	case r.writeOwn(&own, ix, grpc):
	case grpc:
		r.Body = text.Append(r.Body, answer.Bans[req.Ban])
	default:
		r.Headers.Add("content-type", answer.ProblemType)
		r.Body = answer.AppendBan(r.Body, req.Ban, r.Status)
	}
}

// writeOwn writes the operator's own response, and reports whether the body is written. Its texts
// are not copied: the policy set keeps them until they are sent.
func (r *Refusal) writeOwn(own *wire.Response, ix *match.Index, grpc bool) bool {
	if own.Status != 0 {
		r.Status = uint32(own.Status)
	}
	r.Headers.AddOwn(ix.Text(own.Headers))
	if grpc || own.Body.Len == 0 {
		return false
	}
	contentType := answer.TypeOf(ix.Text(own.ContentType))
	r.Headers.Add("content-type", contentType)
	r.Body = r.body.AppendOwn(r.Body, ix.Text(own.Body), contentType)
	return true
}

// AppendDecision appends the decision in the form for access logs. Its wait is Retry-After before
// rounding and jitter.
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
			dst = dialect.AppendInt(text.Append(dst, " retry_us="), int64(hit.Retry))
		}
	}
	dst = dialect.AppendInt(text.Append(dst, " remaining="), hit.Remaining)
	if status == limiter.Delayed {
		dst = dialect.AppendInt(text.Append(dst, " delayed_us="), int64(req.Delay))
	}
	return dst
}

// AppendCosts appends the reserved and the actual costs of a request, in the form for access logs.
func AppendCosts(dst []byte, req *limiter.Request) []byte {
	for i, c := range req.Costs {
		if i > 0 {
			dst = text.Append(dst, "; ")
		}
		dst = dialect.AppendInt(text.Append(dst, "reserved="), c.Reserved)
		if c.Actual >= 0 {
			dst = dialect.AppendInt(text.Append(dst, " actual="), c.Actual)
		}
	}
	return dst
}
