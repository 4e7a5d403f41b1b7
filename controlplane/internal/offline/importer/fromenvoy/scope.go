package fromenvoy

import (
	"strings"

	"github.com/weir-proxy/weir/controlplane/internal/offline/importer"
)

// scope is a place of an Envoy configuration that takes requests: the whole filter chain, a virtual
// host or a route.
type scope struct {
	kind, name string
	// vhost is the virtual host of a route.
	vhost *scope
	// order is the index of a route in its virtual host.
	order int
	match importer.Match
	// remarks are the differences of the match; impossible is the reason why there is no match.
	remarks    []string
	impossible string
	// cluster is the route's target, if it is fixed.
	cluster string
	// limits are its rate_limits; config is its own configuration of the filter, nil for none.
	limits []*importer.Tree
	config *importer.Tree
}

func (s *scope) String() string {
	if s.kind == "" {
		return "all routes"
	}
	return strings.TrimSpace(s.kind + " " + s.name)
}

// walker finds scopes and filters at any depth, so that it reads a bootstrap, the resources of a
// file, a dump of Envoy's admin interface, and a patch of Istio alike.
type walker struct {
	scopes  []*scope
	filters []filter
	// disabled: a filter around the value is switched off.
	disabled bool
}

// filter is the configuration of a filter and the scope that it stands in.
type filter struct {
	at    *importer.Tree
	kind  string
	scope *scope
	// chain is true in a list of filters, false for the configuration of one route or host.
	chain bool
	// disabled: the filter of the chain does nothing but where a route says so.
	disabled bool
}

// walkValue goes through a value; in is the scope around it.
func (w *walker) walkValue(t *importer.Tree, in *scope, chain bool) {
	// Walk through lists.
	for _, item := range t.Items() {
		w.walkValue(item, in, chain)
	}
	if !t.IsMap() {
		return
	}
	// Keep the configurations of limiters.
	if kind := typeOf(t); isLimit(kind) {
		config := t
		if t.Get("type_url").Exists() {
			config = t.Get("value")
		}
		w.filters = append(w.filters, filter{config, kind, in, chain, w.disabled})
		return
	}
	if w.noteDiscovered(t, in, chain) {
		return
	}
	// A mapping may be a filter that is disabled, a virtual host or a route.
	before := w.disabled
	w.disabled = before || t.Get("typed_config").IsMap() && t.Get("disabled").Is()
	defer func() { w.disabled = before }()
	switch {
	case len(t.Get("domains").Items()) > 0:
		in = hostScope(t)
		w.scopes = append(w.scopes, in)
	case in.kind == "virtual host" && t.Get("match").IsMap():
		in = routeScope(t, in, len(w.scopes))
		w.scopes = append(w.scopes, in)
	}
	// Walk through the fields.
	for _, f := range t.Fields() {
		if f.Name == "rate_limits" && in.kind != "" {
			in.limits = append(in.limits, f.Value.Items()...)
			continue
		}
		if f.Name == "typed_per_filter_config" {
			chain = false
			switchedOff(f.Value, in)
		}
		w.walkValue(f.Value, in, chain || f.Name == "http_filters")
	}
}

// noteDiscovered notes a filter that limits and gets its configuration from a server.
func (w *walker) noteDiscovered(t *importer.Tree, in *scope, chain bool) bool {
	for _, url := range t.Path("config_discovery", "type_urls").Texts() {
		if isLimit(kindOf(url)) {
			w.filters = append(w.filters, filter{at: t, kind: discoveredLimit, scope: in, chain: chain})
			return true
		}
	}
	return false
}

// switchedOff notes that a scope switches local_ratelimit off: it has a configuration of its own.
func switchedOff(perFilter *importer.Tree, in *scope) {
	for _, f := range perFilter.Fields() {
		if strings.Contains(f.Name, "local_ratelimit") && f.Value.Get("disabled").Is() && in.kind != "" {
			in.config = f.Value
		}
	}
}

// typeOf returns the type of a configuration without its package, such as LocalRateLimit. It adds
// the protocol before the type if it is not HTTP.
func typeOf(t *importer.Tree) string {
	name := t.Get("@type").Text()
	if inner := t.Get("type_url").Text(); inner != "" {
		name = inner
	}
	return kindOf(name)
}

// kindOf returns the last word of a type's URL. It adds the protocol before the word if it is not
// HTTP.
func kindOf(url string) string {
	_, name, _ := strings.Cut(url, "type.googleapis.com/")
	parts := strings.Split(name, ".")
	kind := parts[len(parts)-1]
	if strings.Contains(name, ".filters.network.") || strings.Contains(name, ".filters.listener.") {
		return "network " + kind
	}
	return kind
}

// discoveredLimit is used as the kind of a filter whose configuration the file does not have.
const discoveredLimit = "config_discovery"

// others are filters that limit something and are not read.
var others = map[string]string{
	discoveredLimit: "its configuration comes from a server: import the configuration that it serves",
	"RateLimit": "this filter asks a rate limit service: import the configuration of that service, with this file " +
		"as --envoy",
	"RateLimitPerRoute": "it belongs to the filter that asks a rate limit service: import the configuration of that " +
		"service, with this file as --envoy",
	"RateLimitQuotaFilterConfig": "its limits come from a server: import those",
	"RateLimitQuotaOverride":     "its limits come from a server: import those",
	"network LocalRateLimit":     "it limits connections, and Weir HTTP requests: leave it as it is",
	"network ConnectionLimit":    "it limits connections, and Weir HTTP requests: leave it as it is",
	"network RateLimit":          "it limits connections, and Weir HTTP requests: leave it as it is",
	"BandwidthLimit":             "it limits bytes, and Weir requests: leave it as it is",
	"AdmissionControl":           "it sheds by the success rate of the upstream: leave it as it is",
	"AdaptiveConcurrency":        "it finds a limit of requests in flight by itself: leave it as it is",
}

func isLimit(kind string) bool { return kind == localLimit || others[kind] != "" }

// hostScope returns a virtual host with the hosts that it takes.
func hostScope(t *importer.Tree) *scope {
	s := &scope{kind: "virtual host", name: t.Get("name").Text()}
	for _, domain := range t.Get("domains").Texts() {
		name, port, _ := strings.Cut(strings.ToLower(domain), ":")
		switch {
		case name == "*":
			s.match.Hosts = nil
			return s
		case strings.HasSuffix(name, "*"):
			s.impossible = "domain " + domain + ": Weir's hosts have a wildcard only at the beginning"
		case strings.HasPrefix(name, "*") && !strings.HasPrefix(name, "*."):
			s.impossible = "domain " + domain + ": a wildcard of Weir's hosts is a whole label"
		}
		if port != "" && port != "*" {
			s.remarks = append(s.remarks, "Weir's hosts have no ports: "+domain)
		}
		s.match.Hosts = append(s.match.Hosts, name)
	}
	return s
}

// routeScope returns a route with the requests that it takes, as far as a match can express them.
func routeScope(t *importer.Tree, vhost *scope, order int) *scope {
	s := &scope{
		kind: "route", name: t.Get("name").Text(), vhost: vhost, order: order, match: vhost.match,
		remarks: vhost.remarks, impossible: vhost.impossible, cluster: t.Path("route", "cluster").Text(),
	}
	match := t.Get("match")
	if s.name == "" {
		s.name = match.Short()
	}
	s.match.Hosts = vhost.match.Hosts
	s.readPath(match)
	for _, h := range match.Get("headers").Items() {
		header, methods, reason := headerMatch(h)
		switch {
		case reason != "":
			s.impossible = "route " + s.name + ": " + reason
		case methods != "":
			s.match.Methods = []string{methods}
		default:
			s.match.Headers = append(s.match.Headers, header)
		}
	}
	if sensitive := match.Get("case_sensitive"); sensitive.Exists() && !sensitive.Is() {
		s.remarks = append(s.remarks, "Weir's paths are case-sensitive")
	}
	for _, f := range match.Unread() {
		s.impossible = "route " + s.name + " has the condition " + f.Name + ", which no match of Weir can express"
	}
	return s
}

// readPath reads the path of a match.
func (s *scope) readPath(match *importer.Tree) {
	switch {
	case match.Get("path").Exists():
		s.match.Paths = []string{match.Get("path").Text()}
	case match.Get("path_separated_prefix").Exists():
		s.match.Paths = importer.Prefix(match.Get("path_separated_prefix").Text())
	case match.Get("prefix").Exists():
		prefix := match.Get("prefix").Text()
		s.match.Paths = importer.Prefix(prefix)
		if s.match.Paths != nil && !strings.HasSuffix(prefix, "/") {
			s.remarks = append(s.remarks,
				"Envoy's prefix "+prefix+" also covers "+prefix+"x, Weir's only paths below "+
					prefix+"/")
		}
	case match.Get("safe_regex").Exists():
		expression := match.Path("safe_regex", "regex").Text()
		match.Path("safe_regex", "google_re2")
		patterns, remark, ok := importer.RegexPaths(strings.TrimSuffix(expression, "$") + "$")
		if !ok {
			s.impossible = "route " + s.name + ": no pattern of Weir takes the same paths as " + expression
			return
		}
		s.match.Paths = patterns
		if remark != "" {
			s.remarks = append(s.remarks, remark)
		}
	}
}

// headerMatch reads a condition on a header: a condition of Weir, or a method, or why neither.
func headerMatch(t *importer.Tree) (h importer.Header, method, reason string) {
	// Read the operator and its text.
	h.Name = strings.ToLower(t.Get("name").Text())
	inverted := t.Get("invert_match").Is()
	text := t.Get("string_match")
	switch {
	case t.Get("exact_match").Exists():
		h.Op, h.Value = "equals", t.Get("exact_match").Text()
	case text.Get("exact").Exists():
		h.Op, h.Value = "equals", text.Get("exact").Text()
	case t.Get("prefix_match").Exists():
		h.Op, h.Value = "prefix", t.Get("prefix_match").Text()
	case text.Get("prefix").Exists():
		h.Op, h.Value = "prefix", text.Get("prefix").Text()
	case t.Get("present_match").Exists():
		h.Op = "present"
		if t.Get("present_match").Is() == inverted {
			h.Op = "absent"
		}
		inverted = false
	default:
		return h, "", "Weir has no such condition on header " + h.Name
	}
	// Refuse conditions that Weir does not have. :method is a condition of its own.
	switch {
	case inverted:
		return h, "", "Weir has no condition \"not equal\" on header " + h.Name
	case text.Get("ignore_case").Is():
		return h, "", "Weir's conditions on headers are case-sensitive: " + h.Name
	case h.Name == ":method" && h.Op == "equals":
		return h, h.Value, ""
	case strings.HasPrefix(h.Name, ":"):
		return h, "", "Weir has no condition on " + h.Name + " among headers"
	}
	return h, "", ""
}
