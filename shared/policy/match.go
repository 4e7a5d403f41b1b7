package policy

import (
	"strings"

	"github.com/weir-proxy/weir/shared/text"
)

func (r *reader) match(path string, n Node) {
	d := &r.draft
	if d.ofMatch == nil {
		host := func(path string, n Node) { r.host(path, n, &d.policy.Match) }
		header := func(path string, n Node) { r.headerMatch(path, n, &d.policy.Match) }
		d.ofMatch = []field{
			{"hosts", func(path string, n Node) { r.list(path, n, host) }},
			{"methods", func(path string, n Node) { r.methods(path, n, &d.policy.Match) }},
			{"paths", func(path string, n Node) { r.paths(path, n, &d.policy.Match) }},
			{"headers", func(path string, n Node) { r.list(path, n, header) }},
			{"client_ips", func(path string, n Node) { d.policy.Match.ClientIPs = r.addresses(path, n) }},
			{"tiers", func(path string, n Node) { r.matchTiers(path, n, d.set, &d.policy.Match) }},
			{"domain", func(path string, n Node) { d.policy.Match.Domain, _ = r.text(path, n) }},
			{"descriptors", func(path string, n Node) { r.descriptors(path, n, &d.policy.Match) }},
		}
	}
	r.object(path, n, d.ofMatch...)
}

func (r *reader) methods(path string, n Node, m *Match) {
	r.list(path, n, func(path string, n Node) { r.method(path, n, m) })
}

func (r *reader) paths(path string, n Node, m *Match) {
	r.list(path, n, func(path string, n Node) {
		if text, ok := r.text(path, n); ok {
			if reason := badPattern(text); reason != "" {
				r.problem(path, reason)
			}
			m.Paths = append(m.Paths, text)
		}
	})
}

func (r *reader) host(path string, n Node, m *Match) {
	text, ok := r.text(path, n)
	if !ok {
		return
	}
	name := strings.ToLower(text)
	for _, label := range strings.Split(strings.TrimPrefix(name, "*."), ".") {
		if label == "" || strings.Trim(label, "abcdefghijklmnopqrstuvwxyz0123456789-_") != "" {
			r.problem(path, "must be a host name without port, or *. and a host name, not "+shorten(text))
			return
		}
	}
	m.Hosts = append(m.Hosts, name)
}

func (r *reader) method(path string, n Node, m *Match) {
	text, ok := r.text(path, n)
	if !ok {
		return
	}
	if !isToken(text) {
		r.problem(path, "must be an HTTP method, not "+shorten(text))
		return
	}
	if upper := strings.ToUpper(text); upper != text {
		r.problem(path, "methods are case-sensitive: write "+upper)
		return
	}
	m.Methods = append(m.Methods, text)
}

func (r *reader) headerMatch(path string, n Node, m *Match) {
	var h HeaderMatch
	conditions, trusted := 0, false
	set := func(op HeaderOp) func(string, Node) {
		return func(path string, n Node) {
			conditions++
			h.Op = op
			if op == HeaderPresent || op == HeaderAbsent {
				if n.Kind != Bool || n.Text != "true" {
					r.wrongKind(path, n, "true")
				}
				return
			}
			h.Value, _ = r.text(path, n)
		}
	}
	fields := []field{
		field{"name", func(path string, n Node) { h.Name, _ = r.headerName(path, n) }},
		field{HeaderEquals.String(), set(HeaderEquals)}, field{HeaderPrefix.String(), set(HeaderPrefix)},
		field{HeaderPresent.String(), set(HeaderPresent)}, field{HeaderAbsent.String(), set(HeaderAbsent)},
	}
	if r.draft.inClass {
		fields = append(fields, field{"trusted", func(path string, n Node) {
			if trusted = n.Kind == Bool && n.Text == "true"; !trusted {
				r.wrongKind(path, n, "true")
			}
		}})
	}
	r.object(path, n, fields...)
	r.draft.untrusted = r.draft.untrusted || !trusted
	if n.Kind != Map {
		return
	}
	r.required(path, n, "name", "")
	r.present(path, conditions == 1, "must have exactly one of equals, prefix, present, absent")
	m.Headers = append(m.Headers, h)
}

// headerName reads the name of a request header and folds it to lower case, as Envoy hands headers
// over.
//
//go:noinline
func (r *reader) headerName(path string, n Node) (string, bool) {
	text, ok := r.text(path, n)
	if !ok {
		return "", false
	}
	if !isToken(text) {
		r.problem(path, "must be a header name, not "+shorten(text))
		return "", false
	}
	return strings.ToLower(text), true
}

// isToken reports whether text is an RFC 9110 token.
func isToken(text string) bool {
	for i := range len(text) {
		c := text[i]
		letter := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
		if !letter && strings.IndexByte("!#$%&'*+-.^_`|~", c) < 0 {
			return false
		}
	}
	return text != ""
}

// badPattern says what is wrong with a path pattern; it is empty for a good one.
func badPattern(text string) string {
	if text[0] != '/' {
		return "must start with /, not " + shorten(text)
	}
	segments := strings.Split(text[1:], "/")
	for i, s := range segments {
		last := i == len(segments)-1
		switch {
		case s == "**" && last:
		case s == "" && last: // A trailing slash makes another path.
		case isCapture(s):
		case s == "" || s == "." || s == "..":
			return "has an empty or dot segment, which no normalised request path has: " + shorten(text)
		case strings.ContainsAny(s, "{}*"):
			return "{name} and a final ** must be whole segments: " + shorten(text)
		case strings.ContainsAny(s, "?#"):
			return "is matched without query: " + shorten(text)
		case !normalEscapes(s):
			return "must percent-encode as normalised paths do, with upper-case digits and only what needs it: " +
				shorten(text)
		}
	}
	return ""
}

// isCapture reports whether a segment is {name}.
func isCapture(s string) bool {
	return len(s) >= 3 && s[0] == '{' && s[len(s)-1] == '}' && !strings.ContainsAny(s[1:len(s)-1], "{}*")
}

// normalEscapes reports whether every percent-encoding in s is one that normalisation leaves as it
// is, so that s can match.
func normalEscapes(s string) bool {
	for i := 0; i < len(s); i++ {
		if s[i] != '%' {
			continue
		}
		if i+2 >= len(s) {
			return false
		}
		c, ok := text.Unhex(s[i+1], s[i+2])
		if !ok || Unreserved(c) || s[i+1] >= 'a' || s[i+2] >= 'a' {
			return false
		}
	}
	return true
}

// Unreserved reports whether c needs no percent-encoding anywhere in a URI (RFC 3986, 2.3).
func Unreserved(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' ||
		c == '-' || c == '.' || c == '_' || c == '~'
}
