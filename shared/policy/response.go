package policy

import (
	"slices"
	"strconv"
	"strings"

	"github.com/weir-proxy/weir/shared/dialect"
	"github.com/weir-proxy/weir/shared/spelling"
)

// Response replaces the usual answer to a refused client, 429 with problem+json. The zero value
// changes nothing.
type Response struct {
	// Status is 400 to 599, 0 for the usual status.
	Status int
	// Body may have fields, see CutField; empty for the usual body.
	Body string
	// ContentType is the type of Body; empty for plain text.
	ContentType string
	// Literal means that Body has a FieldLiteral.
	Literal bool
	// Headers are further headers, only in Set.Responses: a line for each name, in lower case, and
	// a line for its value.
	Headers string
}

// Answer is a group of refusals that get the same answer in Set.Responses. The numbers travel in
// messages: never renumber.
type Answer uint8

// The answers differ by the actions that a caller can take. AnswerCount is their number.
const (
	AnswerQuota Answer = iota
	AnswerPenalty
	AnswerBan
	AnswerAbsent
	AnswerFailure
	AnswerOverload
	AnswerSuspended
	AnswerCount
)

// Answers are the names of the groups.
var Answers = [AnswerCount]string{"quota", "penalty", "ban", "absent", "failure", "overload", "suspended"}

// answers has the group of each reason.
var answers = [...]Answer{
	ReasonQuota: AnswerQuota, ReasonTooDear: AnswerQuota, ReasonAbsent: AnswerAbsent, ReasonBadCost: AnswerAbsent,
	ReasonFailure: AnswerFailure, ReasonTooManyWaiting: AnswerOverload, ReasonContended: AnswerOverload,
	ReasonInFlight: AnswerQuota, ReasonPenalty: AnswerPenalty, ReasonShed: AnswerOverload,
	ReasonSuspended: AnswerSuspended, ReasonSeveral: AnswerAbsent,
}

// Answer returns the group of a reason.
func (r Reason) Answer() Answer { return answers[r] }

// Response returns the set's response to refusals of a group, the zero value if it has none.
func (s *Set) Response(to Answer) Response {
	if len(s.Responses) == 0 {
		return Response{}
	}
	return s.Responses[to]
}

// ResponseOf returns the answer to a refusal by a policy with the given usual status. Each field of
// the policy's own response replaces the field of the set's response.
func (s *Set) ResponseOf(p *Policy, why Reason, status int) Response {
	out := s.Response(why.Answer())
	if own := &p.Response; own.Body != "" {
		out.Body, out.ContentType = own.Body, own.ContentType
	}
	if p.Response.Status != 0 && status == 429 {
		out.Status = p.Response.Status
	}
	return out
}

// MaxResponseHeaders is the largest number of headers of a response, MaxHeaderLines the largest
// number of bytes of its Headers.
const (
	MaxResponseHeaders = 8
	MaxHeaderLines     = 4096
)

// Field is a place in a body where a value of the refusal is filled in.
type Field uint8

// The fields: the name of the limit as in the RateLimit field, its quota and window, the seconds of
// Retry-After, and the seconds until the bucket is full. Their values need no escaping, in JSON or
// elsewhere.
const (
	FieldPolicy Field = iota
	FieldLimit
	FieldWindow
	FieldRetryAfter
	FieldReset
	// FieldLiteral is another word in double braces. It is replaced by the word in single braces.
	FieldLiteral
)

var fieldNames = [...]string{"policy", "limit", "window", "retry_after", "reset"}

// fieldSamples are values as they may be filled in.
var fieldSamples = [...]string{"p", "1", "1m", "1", "1", "{p}"}

// CutField cuts a body at its first field. Without a field it reports false, and before is the
// whole body.
func CutField(body []byte) (before []byte, f Field, rest []byte, ok bool) {
	for i := range body {
		if name := bracedWord(body[i:]); name != nil {
			end := i + len(name) + 2
			for f := range fieldNames {
				if string(name) == fieldNames[f] {
					return body[:i], Field(f), body[end:], true
				}
			}
			if i > 0 && body[i-1] == '{' && end < len(body) && body[end] == '}' {
				return body[:i-1], FieldLiteral, body[end+1:], true
			}
		}
	}
	return body, 0, nil, false
}

// bracedWord returns the word of small letters in braces at the beginning of b, nil if there is
// none.
func bracedWord(b []byte) []byte {
	if len(b) == 0 || b[0] != '{' {
		return nil
	}
	end := 1
	for end < len(b) && (b[end] >= 'a' && b[end] <= 'z' || b[end] == '_') {
		end++
	}
	if end == 1 || end == len(b) || b[end] != '}' {
		return nil
	}
	return b[1:end]
}

// IsJSON reports whether a media type, in letters of any case, is a JSON type.
func IsJSON(contentType string) bool {
	end := 0
	for end < len(contentType) && contentType[end] != ';' && contentType[end] > ' ' {
		end++
	}
	const json = "json"
	at := end - len(json)
	if at <= 0 {
		return false
	}
	for i := range len(json) {
		if contentType[at+i]|0x20 != json[i] {
			return false
		}
	}
	return contentType[at-1] == '/' || contentType[at-1] == '+'
}

// readResponses reads the responses of the set.
func (r *reader) readResponses(path string, n Node, set *Set) {
	set.Responses = make([]Response, AnswerCount)
	fields := make([]field, AnswerCount)
	for i := range fields {
		fields[i] = field{Answers[i], func(path string, n Node) {
			r.readResponse(path, n, &set.Responses[i], Answer(i))
		}}
	}
	r.readMap(path, n, fields...)
	if !slices.ContainsFunc(set.Responses, func(one Response) bool { return one != (Response{}) }) {
		set.Responses = nil // Then a message of the set needs none.
	}
}

// readResponse reads the response of an answer, or with AnswerCount the response of a policy.
func (r *reader) readResponse(path string, n Node, out *Response, of Answer) {
	status := int64(0)
	// Only the set's responses have headers.
	fields := []field{
		field{"status", func(path string, n Node) { r.readInteger(path, n, 400, 599, &status) }},
		field{"body", func(path string, n Node) {
			switch {
			case n.Kind != String:
				r.wrongKind(path, n, "a string")
			case len(n.Text) > MaxBody:
				r.failAt(path, "must have at most 4096 bytes")
			default:
				out.Body = n.Text
			}
		}},
		field{"content_type", func(path string, n Node) {
			if text, ok := r.readText(path, n); ok {
				r.mustHold(path, isMediaType(text), "must be a media type like application/json, not "+shorten(text))
				out.ContentType = text
			}
		}},
		field{"headers", func(path string, n Node) { r.readResponseHeaders(path, n, out) }},
	}
	if of == AnswerCount {
		fields = fields[:3]
	}
	r.readMap(path, n, fields...)
	// Check the body with its content type.
	out.Status = int(status)
	r.mustHold(r.joinPath(path, "content_type"), out.ContentType == "" || out.Body != "",
		"needs a body: write the body too")
	if out.Body != "" {
		r.checkFields(r.joinPath(path, "body"), out, of)
	}
}

// notOfResponses are the prefixes of headers that an operator may not set, because Weir, Envoy or
// the protocol sets them. A blank ends a name. The headers of dialects are forbidden too.
var notOfResponses = [...]string{
	"cache-control ", "connection ", "content-encoding ", "content-length ", "content-range ", "content-type ", "date ",
	"grpc-", "host ", "keep-alive ", "proxy-", "retry-after ", "server ", "te ", "trailer ",
	"transfer-encoding ", "upgrade ", "x-envoy-",
}

func (r *reader) readResponseHeaders(path string, n Node, out *Response) {
	if n.Kind != Map {
		r.wrongKind(path, n, "a mapping of headers")
		return
	}
	if len(n.Keys) > MaxResponseHeaders {
		r.failAt(path, "must have at most 8 headers, not "+strconv.Itoa(len(n.Keys)))
		return
	}
	names := make([]string, len(n.Keys))
	for i, key := range n.Keys {
		at, name := r.joinPath(path, key), spelling.HeaderName(key)
		r.mustHold(at, isToken(key), "must be a header name, not "+shorten(key))
		value, _ := r.readText(at, n.Items[i])
		names[i] = name
		out.Headers += name + "\n" + value + "\n"
		isOurs := dialect.FamilyOfName(name) != 0
		for _, begin := range notOfResponses {
			isOurs = isOurs || strings.HasPrefix(name+" ", begin)
		}
		r.mustHold(at, !isOurs, "is not yours to set: Weir, Envoy or the protocol does")
		r.mustHold(at, !containsText(names[:i], name), "is given twice")
		r.mustHold(at, !neverSent(value, false), noHeaderValue)
	}
	r.mustHold(path, len(out.Headers) <= MaxHeaderLines, "must have at most 4096 bytes together")
}

// checkFields refuses a body with an unknown field, and a JSON body that is not valid JSON once its
// fields are filled in.
func (r *reader) checkFields(path string, out *Response, of Answer) {
	filled := make([]byte, 0, len(out.Body))
	for rest := []byte(out.Body); ; {
		before, f, after, ok := CutField(rest)
		filled = append(filled, before...)
		for i := range before {
			if name := bracedWord(before[i:]); name != nil {
				r.failAt(path, "has the field "+shorten(string(name))+
					": there are policy, limit, window, retry_after and reset")
			}
		}
		if !ok {
			break
		}
		out.Literal = out.Literal || f == FieldLiteral
		r.mustHold(path, of != AnswerBan || f == FieldLiteral || f == FieldRetryAfter,
			"is the body of a ban, which no limit decides: its only field is retry_after")
		filled, rest = append(filled, fieldSamples[f]...), after
	}
	r.mustHold(path, out.ContentType == "" || !IsJSON(out.ContentType) || validJSON(filled),
		"is not valid JSON once its fields are filled in: {policy} and {window} are texts and belong into quotes")
}

// isMediaType reports whether a text is type/subtype, perhaps with parameters.
func isMediaType(text string) bool {
	kind, parameters, _ := strings.Cut(text, ";")
	before, after, ok := strings.Cut(strings.TrimSpace(kind), "/")
	if !ok || !isToken(before) || !isToken(after) {
		return false
	}
	for i := range len(parameters) {
		if parameters[i] < ' ' || parameters[i] >= 0x7f {
			return false
		}
	}
	return true
}
