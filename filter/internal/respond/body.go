package respond

import (
	"github.com/weir-proxy/weir/filter/internal/limiter"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/ratelimitheader"
	"github.com/weir-proxy/weir/shared/text"
	"github.com/weir-proxy/weir/shared/wire"
)

// writeOwn writes what a response of the operator's says, and reports whether that is all: whether
// the body is written.
func (r *Refusal) writeOwn(own *wire.Response, req *limiter.Request, retry int64, grpc bool) bool {
	ix := &req.Rules().Index
	if own.Status != 0 {
		r.Status = uint32(own.Status)
	}
	for rest := ix.Text(own.Headers); len(rest) > 0 && r.Headers.n < maxHeaders-1; {
		var name, value []byte
		name, rest = text.Cut(rest, '\n')
		value, rest = text.Cut(rest, '\n')
		r.Headers.add(view(name), view(value)) // The set stays until they are sent.
	}
	if grpc || own.Body.Len == 0 {
		return false
	}
	contentType := view(ix.Text(own.ContentType))
	if contentType == "" {
		contentType = "text/plain; charset=utf-8"
	}
	r.Headers.add("content-type", contentType)
	never := "never"
	if policy.IsJSON(contentType) {
		never = "null"
	}
	r.writeBody(ix.Text(own.Body), never, req, retry)
	return true
}

// writeBody writes a body with its fields filled in; never stands for a wait that does not help. A
// ban, which no limit decides, has no field but the wait.
func (r *Refusal) writeBody(body []byte, never string, req *limiter.Request, retry int64) {
	for {
		before, field, rest, ok := policy.CutField(body)
		r.put(view(before))
		if !ok {
			return
		}
		wait := retry
		switch {
		case field == policy.FieldLiteral:
			r.put(view(body[len(before)+1 : len(body)-len(rest)-1]))
			wait = -1
		case field != policy.FieldRetryAfter && req.Refusing < len(req.Hits):
			wait = r.fill(field, req, retry)
		}
		if wait > 0 {
			r.putInt("", wait)
		} else if wait == 0 {
			r.put(never)
		}
		body = rest
	}
}

// fill writes what a field says of the limit that refuses, or is the seconds that it names, 0 for
// never.
func (r *Refusal) fill(field policy.Field, req *limiter.Request, retry int64) (wait int64) {
	hit := &req.Hits[req.Refusing]
	l := req.LimitOf(&hit.Hit)
	switch field {
	case policy.FieldPolicy:
		r.put(view(name(req, req.Refusing)))
	case policy.FieldLimit:
		r.putInt("", l.Quota)
	case policy.FieldWindow:
		window := l.Window
		if l.InFlight { // It has none, but the longest that a request counts.
			window = 0
		}
		r.Body = policy.AppendSpan(r.Body, window)
	default:
		if retry == 0 && hit.Reset != quota.Never {
			r.putInt("", ratelimitheader.Seconds(hit.Reset))
			return -1
		}
		return retry
	}
	return -1
}
