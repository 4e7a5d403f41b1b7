package policy

import (
	"strconv"
	"strings"

	"github.com/weir-proxy/weir/shared/ipaddr"
	"github.com/weir-proxy/weir/shared/spelling"
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
		text, ok := r.text(path, n)
		if !ok {
			return
		}
		pattern, problem := Pattern(text, r.routing)
		switch {
		case problem != "":
		case r.routing&spelling.CutParameters != 0 && strings.IndexByte(text, ';') >= 0:
			problem = "has a semicolon, where match.path_parameters cuts: write %3B for the character: " + shorten(text)
		case len(pattern) > MaxText:
			problem = "has more than " + strconv.Itoa(MaxText) + " bytes as requests spell it"
		}
		r.present(path, problem == "", problem)
		m.Paths = append(m.Paths, pattern)
	})
}

// host reads a host name, or an IPv6 address with or without its brackets, in the spelling that
// requests are given. Names beyond ASCII come in Punycode: the control plane writes them so.
func (r *reader) host(path string, n Node, m *Match) {
	text, ok := r.text(path, n)
	if !ok {
		return
	}
	literal := text
	if text[0] == '[' && text[len(text)-1] == ']' {
		literal = text[1 : len(text)-1]
	}
	if addr, zone, ok := ipaddr.Parse(literal); ok && zone == "" && !addr.Is4() {
		m.Hosts = append(m.Hosts, string(addr.AppendIPv6([]byte{'['}))+"]")
		return
	}
	name := strings.ToLower(strings.TrimSuffix(text, "."))
	for _, label := range strings.Split(strings.TrimPrefix(name, "*."), ".") {
		if label == "" || strings.Trim(label, "abcdefghijklmnopqrstuvwxyz0123456789-_") != "" {
			r.problem(path, "must be a host name without port, in Punycode, *. and a host name, or an IPv6 address, "+
				"not "+shorten(text))
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
	if text == "*" {
		r.problem(path, "no method is called *: leave methods out to match all of them")
		return
	}
	if upper := strings.ToUpper(text); upper != text {
		r.problem(path, "must be in upper case: write "+upper)
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
			r.present(path, !neverSent(h.Value, op == HeaderPrefix), noHeaderValue)
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
	h.Value = spelledAs(h.Name, h.Value)
	r.required(path, n, "name", "")
	r.present(path, conditions == 1, "must have exactly one of equals, prefix, present, absent")
	m.Headers = append(m.Headers, h)
}

// spelledAs is a value of a header, or the beginning of one, as requests are given it: schemes of
// authorization have no case.
func spelledAs(header, value string) string {
	scheme, _, more := strings.Cut(value, " ")
	if header == "authorization" && (more || !strings.ContainsAny(value, "0123456789_-.")) {
		return strings.ToLower(scheme) + value[len(scheme):]
	}
	return value
}

// headerName reads the name of a request header, in the one spelling that matching compares by.
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
	name := spelling.HeaderName(text)
	if name == "host" {
		r.problem(path, "is none of Envoy's headers: use match.hosts, or the part host")
	}
	return name, true
}

const noHeaderValue = "has blanks around it or a control character, as no header's value has"

// neverSent reports whether a header's value, or its beginning, is one that no request has.
func neverSent(value string, beginning bool) bool {
	for i := range len(value) {
		edge := i == 0 || i == len(value)-1 && !beginning
		if c := value[i]; c < ' ' && c != '\t' || c == 0x7f || edge && (c == ' ' || c == '\t') {
			return true
		}
	}
	return false
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

// Unreserved reports whether c needs no percent-encoding anywhere in a URI (RFC 3986, 2.3).
func Unreserved(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' ||
		c == '-' || c == '.' || c == '_' || c == '~'
}
