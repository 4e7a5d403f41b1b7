package respond

import (
	"github.com/weir-proxy/weir/filter/internal/limiter"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/ratelimitheader"
)

// writeOwn writes the body of the policy, with its fields filled in.
func (r *Refusal) writeOwn(body []byte, json bool, req *limiter.Request, retry int64) {
	hit := &req.Hits[req.Refusing]
	l := req.LimitOf(&hit.Hit)
	for {
		before, field, rest, ok := policy.CutField(body)
		r.Body = append(r.Body, before...)
		if !ok {
			return
		}
		switch field {
		case policy.FieldPolicy:
			r.Body = append(r.Body, name(req, req.Refusing)...)
		case policy.FieldLimit:
			r.Body = ratelimitheader.AppendInt(r.Body, l.Quota)
		case policy.FieldWindow:
			r.Body = policy.AppendSpan(r.Body, l.Window)
		case policy.FieldReset:
			if retry == 0 && hit.Reset != quota.Never {
				r.Body = ratelimitheader.AppendInt(r.Body, ratelimitheader.Seconds(hit.Reset))
			} else {
				r.Body = appendRetry(r.Body, retry, json)
			}
		default:
			r.Body = appendRetry(r.Body, retry, json)
		}
		body = rest
	}
}

// appendRetry writes the seconds to wait, or the word for never if waiting does not help.
func appendRetry(b []byte, retry int64, json bool) []byte {
	switch {
	case retry > 0:
		return ratelimitheader.AppendInt(b, retry)
	case json:
		return append(b, "null"...)
	}
	return append(b, "never"...)
}
