package fromnginx

import (
	"errors"
	"net/netip"
	"regexp"
	"slices"
	"strings"

	crossplane "github.com/nginxinc/nginx-go-crossplane"

	"github.com/weir-proxy/weir/controlplane/internal/offline/importer"
)

// variable is what a map or a geo block defines.
type variable struct {
	place
	isGeo bool
	// source is the text that a map looks up, or the address that a geo block does.
	source  string
	entries []entry
	// used: it is the key of a limit, or the source of one. inside: it is a part of one.
	used, inside bool
	// refused says why the import does not follow it; empty if it does.
	refused string
}

// entry is a line of a map or a geo block; the key default is for all others.
type entry struct{ key, value string }

// variable takes in a map or a geo block.
func (r *reader) variable(d *crossplane.Directive, p place) {
	v := &variable{place: p, isGeo: d.Directive == "geo"}
	name := ""
	switch {
	case len(d.Args) == 1:
		v.source, name = "$remote_addr", d.Args[0]
	case len(d.Args) > 1:
		v.source, name = d.Args[0], d.Args[1]
	}
	for _, e := range d.Block {
		switch {
		case e.Directive == "hostnames", e.Directive == "volatile":
		case e.Directive == "include", v.isGeo &&
			slices.Contains([]string{"ranges", "delete", "proxy", "proxy_recursive"}, e.Directive):
			v.refused = e.Directive + " in this block is not read"
		default:
			v.entries = append(v.entries, entry{e.Directive, strings.Join(e.Args, " ")})
		}
	}
	r.variables[strings.TrimPrefix(name, "$")] = v
}

// counted is the requests that a zone counts, and what it counts them by.
type counted struct {
	// key is empty if nginx counts no request.
	key string
	// networks have the addresses of clients that are counted, methods are those of requests; nil
	// is all.
	networks []netip.Prefix
	methods  []string
}

var aVariable = regexp.MustCompile(`\$\{?([a-zA-Z0-9_]+)\}?`)

// counted follows a key that is the variable of a map. Other keys stand for themselves.
func (r *reader) counted(key string) (counted, error) {
	for _, name := range aVariable.FindAllStringSubmatch(key, -1) {
		v := r.variables[name[1]]
		if v == nil {
			continue
		}
		if name[0] != key {
			v.inside = true
			return counted{}, errors.New(notInside + ", not in " + key)
		}
		v.used = true
		c := counted{}
		if v.refused == "" {
			c, v.refused = r.follow(v)
		}
		if v.refused != "" {
			return c, errors.New(v.place.String() + ": " + v.refused)
		}
		return c, nil
	}
	return counted{key: key}, nil
}

// notInside is the reason for a map that is a part of a key.
const notInside = "the import follows a map only if it is the whole key"

// notFollowed is the reason for a map whose cases would be policies of their own.
const notFollowed = "a map is followed if it has one key, or none, for the networks of a geo block or for methods; " +
	"write a policy for each case of this one"

// follow finds which requests are counted by a map that gives one key to some of them, and to all
// others an empty one, which nginx does not count. Refused says why it cannot.
func (r *reader) follow(m *variable) (c counted, refused string) {
	for _, e := range m.entries {
		switch {
		case strings.HasPrefix(e.key, "~"), e.value != "" && c.key != "" && e.value != c.key:
			return c, notFollowed
		case e.value != "":
			c.key = e.value
		}
	}
	for _, name := range aVariable.FindAllStringSubmatch(c.key, -1) {
		if r.variables[name[1]] != nil {
			return c, notFollowed
		}
	}
	source := r.variables[strings.Trim(m.source, "${}")]
	switch {
	case m.isGeo:
		return c, notFollowed
	case source != nil && source.isGeo:
		source.used = true
		if source.refused == "" {
			source.refused = c.only(source, m)
		}
		return c, source.refused
	case m.source == "$request_method" && m.lookUp("default") == "":
		for _, e := range m.entries {
			if e.value != "" {
				c.methods = append(c.methods, strings.ToUpper(strings.TrimPrefix(e.key, `\`)))
			}
		}
		return c, ""
	}
	return c, notFollowed
}

// only leaves the networks of a geo block for which a map has a key.
func (c *counted) only(geo, m *variable) (refused string) {
	if geo.source != "$remote_addr" && geo.source != "$binary_remote_addr" {
		return "Weir goes by the client's address, not by " + geo.source
	}
	var networks []netip.Prefix
	var values []string
	for _, e := range geo.entries {
		if e.key == "default" {
			continue
		}
		network, ok := importer.ParseNetwork(e.key)
		if !ok {
			return e.key + " is no network"
		}
		networks, values = append(networks, network), append(values, e.value)
	}
	all := true
	for _, part := range importer.Longest(networks) {
		value := geo.lookUp("default")
		if part.Of >= 0 {
			value = values[part.Of]
		}
		if m.lookUp(value) != "" {
			c.networks = append(c.networks, part.Network)
		} else {
			all = false
		}
	}
	switch {
	case all:
		c.networks = nil
	case c.networks == nil:
		c.key = ""
	}
	return ""
}

// lookUp is the value of a text, or else that of the line default.
func (v *variable) lookUp(text string) (value string) {
	for _, e := range v.entries {
		switch {
		case e.key == "default":
			value = e.value
		case strings.EqualFold(strings.TrimPrefix(e.key, `\`), text):
			return e.value
		}
	}
	return value
}
