package policy

import "strings"

// Response is what a refused client gets instead of 429 and problem+json. The zero value changes
// nothing.
type Response struct {
	// Status is 400 to 599, 0 for the usual one.
	Status int
	// Body may hold fields, see CutField; empty for the usual one.
	Body string
	// ContentType is that of Body; empty for plain text.
	ContentType string
}

// Field is a place in a body where a value of the refusal is filled in.
type Field uint8

// The fields: the name of the limit as the RateLimit field has it, its quota and window, the
// seconds of Retry-After, and the seconds until the bucket is full. Their values need no escaping,
// in JSON or elsewhere.
const (
	FieldPolicy Field = iota
	FieldLimit
	FieldWindow
	FieldRetryAfter
	FieldReset
)

var fieldNames = [...]string{"policy", "limit", "window", "retry_after", "reset"}

// fieldSamples are values as they may be filled in.
var fieldSamples = [len(fieldNames)]string{"p", "1", "1m", "1", "1"}

// CutField cuts a body at its first field. Without a field it reports false, and all of the body
// lies before.
func CutField(body []byte) (before []byte, f Field, rest []byte, ok bool) {
	for i := range body {
		if name := braced(body[i:]); name != nil {
			for f := range fieldNames {
				if string(name) == fieldNames[f] {
					return body[:i], Field(f), body[i+len(name)+2:], true
				}
			}
		}
	}
	return body, 0, nil, false
}

// braced is the word of small letters that b begins with in braces, nil if it does not.
func braced(b []byte) []byte {
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

// IsJSON reports whether a media type is one of JSON.
func IsJSON(contentType []byte) bool {
	end := 0
	for end < len(contentType) && contentType[end] != ';' && contentType[end] != ' ' {
		end++
	}
	const json = "json"
	if end <= len(json) || string(contentType[end-len(json):end]) != json {
		return false
	}
	before := contentType[end-len(json)-1]
	return before == '/' || before == '+'
}

func (r *reader) response(path string, n Node, out *Response) {
	status := int64(0)
	r.object(path, n,
		field{"status", func(path string, n Node) { r.integer(path, n, 400, 599, &status) }},
		field{"body", func(path string, n Node) {
			switch {
			case n.Kind != String:
				r.wrongKind(path, n, "a string")
			case len(n.Text) > MaxBody:
				r.problem(path, "must have at most 4096 bytes")
			default:
				out.Body = n.Text
			}
		}},
		field{"content_type", func(path string, n Node) {
			if text, ok := r.text(path, n); ok {
				r.present(path, isMediaType(text), "must be a media type like application/json, not "+shorten(text))
				out.ContentType = text
			}
		}},
	)
	out.Status = int(status)
	r.present(r.join(path, "content_type"), out.ContentType == "" || out.Body != "",
		"is that of a body: write response.body too")
	if out.Body != "" {
		r.fields(r.join(path, "body"), out)
	}
}

// fields refuses a body with an unknown field, and a JSON body that is not valid JSON once its
// fields are filled in.
func (r *reader) fields(path string, out *Response) {
	filled := make([]byte, 0, len(out.Body))
	for rest := []byte(out.Body); ; {
		before, f, after, ok := CutField(rest)
		filled = append(filled, before...)
		for i := range before {
			if name := braced(before[i:]); name != nil {
				r.problem(path, "has the field "+shorten(string(name))+
					": there are policy, limit, window, retry_after and reset")
			}
		}
		if !ok {
			break
		}
		filled, rest = append(filled, fieldSamples[f]...), after
	}
	r.present(path, out.ContentType == "" || !IsJSON([]byte(out.ContentType)) || validJSON(filled),
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
