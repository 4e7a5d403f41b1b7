package policy

import (
	"strconv"
	"strings"

	"github.com/weir-proxy/weir/shared/ipaddr"
	"github.com/weir-proxy/weir/shared/spelling"
)

func (r *reader) readMatch(path string, n Node) {
	d := &r.draft
	if d.ofMatch == nil {
		host := func(path string, n Node) { r.readHost(path, n, &d.policy.Match) }
		header := func(path string, n Node) { r.readHeaderMatch(path, n, &d.policy.Match) }
		d.ofMatch = []field{
			{"hosts", func(path string, n Node) { r.readList(path, n, host) }},
			{"methods", func(path string, n Node) { r.readMethods(path, n, &d.policy.Match) }},
			{"paths", func(path string, n Node) { r.readPaths(path, n, &d.policy.Match) }},
			{"headers", func(path string, n Node) { r.readList(path, n, header) }},
			{"client_ips", func(path string, n Node) { d.policy.Match.ClientIPs = r.readAddresses(path, n) }},
			{"tiers", func(path string, n Node) { r.readMatchTiers(path, n, d.set, &d.policy.Match) }},
			{"domain", func(path string, n Node) { d.policy.Match.Domain, _ = r.readText(path, n) }},
			{"descriptors", func(path string, n Node) { r.readDescriptors(path, n, &d.policy.Match) }},
		}
	}
	r.readMap(path, n, d.ofMatch...)
}

func (r *reader) readMethods(path string, n Node, m *Match) {
	r.readList(path, n, func(path string, n Node) { r.readMethod(path, n, m) })
}

func (r *reader) readPaths(path string, n Node, m *Match) {
	r.readList(path, n, func(path string, n Node) {
		text, ok := r.readText(path, n)
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
		r.mustHold(path, problem == "", problem)
		m.Paths = append(m.Paths, pattern)
	})
}

// readHost reads a host name, or an IPv6 address with or without its brackets, in the spelling of
// hosts in requests. Names beyond ASCII are in Punycode: the control plane writes them like this.
func (r *reader) readHost(path string, n Node, m *Match) {
	text, ok := r.readText(path, n)
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
			r.failAt(path, "must be a host name without port, in Punycode, *. and a host name, or an IPv6 address, "+
				"not "+shorten(text))
			return
		}
	}
	m.Hosts = append(m.Hosts, name)
}

func (r *reader) readMethod(path string, n Node, m *Match) {
	text, ok := r.readText(path, n)
	if !ok {
		return
	}
	if !isToken(text) {
		r.failAt(path, "must be an HTTP method, not "+shorten(text))
		return
	}
	if text == "*" {
		r.failAt(path, "no method is called *: leave methods out to match all of them")
		return
	}
	if upper := strings.ToUpper(text); upper != text {
		r.failAt(path, "must be in upper case: write "+upper)
		return
	}
	m.Methods = append(m.Methods, text)
}

func (r *reader) readHeaderMatch(path string, n Node, m *Match) {
	var h HeaderMatch
	conditions, trusted := 0, false
	// The condition is one of several keys, each at most once.
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
			h.Value, _ = r.readText(path, n)
			r.mustHold(path, !neverSent(h.Value, op == HeaderPrefix), noHeaderValue)
		}
	}
	// Only a condition of a class can be trusted.
	fields := []field{
		field{"name", func(path string, n Node) { h.Name, _ = r.readHeaderName(path, n) }},
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
	r.readMap(path, n, fields...)
	r.draft.untrusted = r.draft.untrusted || !trusted
	// Check the whole condition.
	if n.Kind != Map {
		return
	}
	h.Value = spelledAs(h.Name, h.Value)
	r.requireField(path, n, "name", "")
	r.mustHold(path, conditions == 1, "must have exactly one of equals, prefix, present, absent")
	m.Headers = append(m.Headers, h)
}

// spelledAs returns a value of a header, or its beginning, in the spelling of values in requests:
// schemes of authorization have no case.
func spelledAs(header, value string) string {
	scheme, _, more := strings.Cut(value, " ")
	if header == "authorization" && (more || !strings.ContainsAny(value, "0123456789_-.")) {
		return strings.ToLower(scheme) + value[len(scheme):]
	}
	return value
}

// readHeaderName reads the name of a request header, in the spelling that matching compares.
//
//go:noinline
func (r *reader) readHeaderName(path string, n Node) (string, bool) {
	text, ok := r.readText(path, n)
	if !ok {
		return "", false
	}
	if !isToken(text) {
		r.failAt(path, "must be a header name, not "+shorten(text))
		return "", false
	}
	name := spelling.HeaderName(text)
	if name == "host" {
		r.failAt(path, "is none of Envoy's headers: use match.hosts, or the part host")
	}
	return name, true
}

const noHeaderValue = "has blanks around it or a control character, as no header's value has"

// neverSent reports whether no request can have a header's value, or its beginning.
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
