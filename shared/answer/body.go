package answer

import (
	"unsafe"

	"github.com/weir-proxy/weir/shared/dialect"
	"github.com/weir-proxy/weir/shared/match"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/text"
)

// Body is the content of a refusal's body.
type Body struct {
	About
	// Name is the limit's name as in the headers. Tier is the caller's tier, if limits depend on
	// tiers.
	Name, Tier []byte
	// Retry is the seconds of Retry-After, 0 if waiting does not help. Reset is the time until the
	// bucket is full.
	Retry int64
	Reset quota.Span
}

// ProblemType is the content type of a problem.
const ProblemType = "application/problem+json"

// AppendProblem appends problem+json (RFC 9457), without a status if that is 0. Each value in it is
// a number or is the operator's, so it needs no escaping: validation keeps the names of policies
// and tiers plain.
func (p *Body) AppendProblem(b []byte, status uint32) []byte {
	kind, l := p.Kind(), p.Limit
	b = p.AppendSentence(appendStart(b, kind, status), p.Retry)
	b = appendAround(b, `","violated-policies":["`, p.Name, `"]`)
	if p.Reason != policy.ReasonShed { // Its limit is another at each moment.
		b = dialect.AppendInt(text.Append(b, `,"limit":`), l.Quota)
	}
	if !l.InFlight {
		b = policy.AppendSpan(text.Append(b, `,"window":"`), l.Window)
		b = append(b, '"')
	}
	if len(p.Tier) > 0 {
		b = appendAround(b, `,"tier":"`, p.Tier, `"`)
	}
	if p.Retry > 0 {
		b = dialect.AppendInt(text.Append(b, `,"retry_after":`), p.Retry)
	}
	return text.Append(b, "}\n")
}

// appendStart appends the beginning of a problem, up to the detail.
func appendStart(b []byte, kind *Kind, status uint32) []byte {
	b = text.Append(text.Append(b, `{"type":"`), kind.Type)
	b = text.Append(text.Append(b, `","title":"`), kind.Title)
	b = append(b, '"')
	if status != 0 {
		b = dialect.AppendInt(text.Append(b, `,"status":`), int64(status))
	}
	return text.Append(b, `,"detail":"`)
}

// AppendBan appends the problem of a banned caller, without a status if that is 0.
func AppendBan(b []byte, ban match.Ban, status uint32) []byte {
	b = appendStart(b, &Kinds[policy.ReasonAbsent], status)
	return text.Append(text.Append(b, Bans[ban]), "\"}\n")
}

// TypeOf returns the content type of an operator's body.
func TypeOf(own []byte) string {
	if len(own) == 0 {
		return "text/plain; charset=utf-8"
	}
	return viewString(own)
}

// AppendOwn appends an operator's body with its fields filled in. For a ban, which no limit
// decides, it only fills in the wait.
func (p *Body) AppendOwn(b, body []byte, contentType string) []byte {
	never := "never"
	if policy.IsJSON(contentType) {
		never = "null"
	}
	for {
		before, field, rest, ok := policy.CutField(body)
		b = append(b, before...)
		if !ok {
			return b
		}
		wait := p.Retry
		switch {
		case field == policy.FieldLiteral:
			b, wait = append(b, body[len(before)+1:len(body)-len(rest)-1]...), -1
		case p.Limit != nil && field != policy.FieldRetryAfter:
			b, wait = p.appendField(b, field)
		}
		if wait > 0 {
			b = dialect.AppendInt(b, wait)
		} else if wait == 0 {
			b = text.Append(b, never)
		}
		body = rest
	}
}

// appendField appends a field's value of the limit that refuses, or returns the seconds of the
// field, 0 for never.
func (p *Body) appendField(b []byte, field policy.Field) (filled []byte, wait int64) {
	switch field {
	case policy.FieldPolicy:
		return append(b, p.Name...), -1
	case policy.FieldLimit:
		return dialect.AppendInt(b, p.Limit.Quota), -1
	case policy.FieldWindow:
		window := p.Limit.Window
		if p.Limit.InFlight { // It has none, but the longest that a request counts.
			window = 0
		}
		return policy.AppendSpan(b, window), -1
	}
	if p.Retry == 0 && p.Reset != quota.Never {
		return dialect.AppendInt(b, dialect.Seconds(p.Reset)), -1
	}
	return b, p.Retry
}

// viewString returns b as a string, valid while b is unchanged.
func viewString(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }
