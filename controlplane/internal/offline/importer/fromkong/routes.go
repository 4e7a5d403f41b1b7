package fromkong

import (
	"strings"

	"github.com/weir-proxy/weir/controlplane/internal/offline/importer"
)

// route is a route and the requests that it takes.
type route struct {
	name, id           string
	service, serviceID string
	matches            []importer.Match
	// remarks describe the differences between the matches and Kong's route.
	remarks []string
	// impossible is the reason why no match takes the same requests; empty if there are matches.
	impossible string
}

// readRoute reads a route of a service, and the plugins of the route.
func (r *reader) readRoute(t *importer.Tree, service string) {
	one := route{name: nameOf(t), id: t.Get("id").Text(), service: service}
	if s := r.services[service]; s != nil {
		one.service, one.serviceID = nameOf(s), s.Get("id").Text()
	}
	one.read(t)
	r.routes = append(r.routes, one)
	r.readPlugins(t.Get("plugins"), instance{route: one.name, service: ""})
}

// read sets the matches of the route, or impossible.
func (o *route) read(t *importer.Tree) {
	// An expression cannot become a match.
	if t.Get("expression").Exists() {
		o.impossible = "route " + o.name + " is an expression, which no match of Weir can express: " +
			"write its match by hand"
		return
	}
	// Read the methods, the hosts and the paths.
	m := importer.Match{Methods: t.Get("methods").Texts()}
	for _, host := range t.Get("hosts").Texts() {
		name, port, _ := strings.Cut(strings.ToLower(host), ":")
		if port != "" {
			o.addRemark("Weir's hosts have no ports: " + host)
		}
		if strings.HasSuffix(name, ".*") {
			o.impossible = "host " + host + " of route " + o.name + ": Weir has wildcards at the beginning only"
			return
		}
		m.Hosts = append(m.Hosts, name)
	}
	for _, path := range t.Get("paths").Texts() {
		if !o.addPath(path, &m) {
			return
		}
	}
	// Refuse conditions that a match does not have.
	for _, key := range []string{"snis", "sources", "destinations"} {
		if t.Get(key).Exists() {
			o.impossible = "route " + o.name + " has the condition " + key + ", which no match of Weir can express"
			return
		}
	}
	// Multiply the match by the values of each header.
	o.matches = []importer.Match{m}
	for _, header := range t.Get("headers").Fields() {
		o.addHeader(header.Name, header.Value.Texts())
	}
}

// addPath adds a path to a match. If no pattern takes the same paths, it sets impossible and
// returns false.
func (o *route) addPath(path string, m *importer.Match) bool {
	if expression, found := strings.CutPrefix(path, "~"); found {
		patterns, remark, ok := importer.RegexPaths(expression)
		if !ok {
			o.impossible = "path " + path + " of route " + o.name +
				": no pattern of Weir takes the same paths as this expression"
			return false
		}
		o.addRemark(remark)
		m.Paths = append(m.Paths, patterns...)
		return true
	}
	patterns := importer.Prefix(path)
	if patterns == nil { // The path takes all paths, so the other paths of the list do not matter.
		m.Paths = []string{"/**"}
		return true
	}
	if !strings.HasSuffix(path, "/") {
		o.addRemark("Kong's path " + path + " also covers " + path + "x, Weir's only paths below " + path + "/")
	}
	m.Paths = append(m.Paths, patterns...)
	return true
}

// addHeader replaces each match by one match for each value of the header, because all headers of a
// match must have their values.
func (o *route) addHeader(name string, values []string) {
	var all []importer.Match
	for _, m := range o.matches {
		for _, value := range values {
			if strings.HasPrefix(value, "~*") {
				o.impossible = "header " + name + " of route " + o.name +
					" is a regular expression, which no match of Weir can express"
				return
			}
			one := m
			one.Headers = append(one.Headers[:len(one.Headers):len(one.Headers)],
				importer.Header{Name: strings.ToLower(name), Op: "equals", Value: value})
			all = append(all, one)
		}
	}
	if len(all) > maxMatches {
		o.impossible = "route " + o.name + " has more combinations of headers than make sense as policies"
		return
	}
	o.matches = all
}

// maxMatches bounds the matches of a route.
const maxMatches = 64

func (o *route) addRemark(text string) {
	if text != "" {
		o.remarks = append(o.remarks, text)
	}
}
