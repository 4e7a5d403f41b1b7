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

// variable is a variable that a map or a geo block defines.
type variable struct {
	place
	isGeo bool
	// source is the text that a map looks up, or the address that a geo block looks up.
	source  string
	entries []entry
	// used is true if the variable is the key of a limit, or the source of such a key. inside is
	// true if it is a part of a key.
	used, inside bool
	// refused is the reason why the import cannot use the variable; empty if it can.
	refused string
}

// entry is a line of a map or a geo block. The key default matches all texts without a line of
// their own.
type entry struct{ key, value string }

// readVariable reads a map or a geo block into r.variables.
func (r *reader) readVariable(d *crossplane.Directive, p place) {
	v := &variable{place: p, isGeo: d.Directive == "geo"}
	name := ""
	switch {
	case len(d.Args) == 1: // A geo block looks up the client's address by default.
		v.source, name = "$remote_addr", d.Args[0]
	case len(d.Args) > 1:
		v.source, name = d.Args[0], d.Args[1]
	}
	for _, e := range d.Block {
		switch {
		case e.Directive == "hostnames", e.Directive == "volatile":
			// They change nothing: expandMap follows no map of host names, and no import caches a
			// value.
		case e.Directive == "include", v.isGeo &&
			slices.Contains([]string{"ranges", "delete", "proxy", "proxy_recursive"}, e.Directive):
			v.refused = e.Directive + " in this block is not read"
		default:
			v.entries = append(v.entries, entry{e.Directive, strings.Join(e.Args, " ")})
		}
	}
	r.variables[strings.TrimPrefix(name, "$")] = v
}

// counted describes the requests that a zone counts, and the key by which it counts them.
type counted struct {
	// key is the text of the key; empty if nginx counts no request.
	key string
	// networks contain the clients whose requests are counted, methods are the methods of these
	// requests; nil for all.
	networks []netip.Prefix
	methods  []string
}

var aVariable = regexp.MustCompile(`\$\{?([a-zA-Z0-9_]+)\}?`)

// expandKey replaces a key that is the variable of a map by the key in that map. It returns any
// other key unchanged.
func (r *reader) expandKey(key string) (counted, error) {
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
			c, v.refused = r.expandMap(v)
		}
		if v.refused != "" {
			return c, errors.New(v.place.String() + ": " + v.refused)
		}
		return c, nil
	}
	return counted{key: key}, nil
}

// notInside is the reason to refuse a map that is only a part of a key.
const notInside = "the import follows a map only if it is the whole key"

// notFollowed is the reason to refuse a map that would need a policy for each of its cases.
const notFollowed = "a map is followed if it has one key, or none, for the networks of a geo block or for methods; " +
	"write a policy for each case of this map"

// expandMap finds the requests to which a map gives its only key. All other requests have an empty
// key, and nginx does not count them. refused is the reason why the map cannot be used.
func (r *reader) expandMap(m *variable) (c counted, refused string) {
	key, ok := r.findOnlyKey(m)
	if !ok || m.isGeo {
		return counted{key: key}, notFollowed
	}
	c.key = key

	if geo := r.variables[strings.Trim(m.source, "${}")]; geo != nil && geo.isGeo {
		geo.used = true
		if geo.refused == "" {
			geo.refused = c.selectNetworks(geo, m)
		}
		return c, geo.refused
	}

	if m.source == "$request_method" && m.lookUp("default") == "" {
		c.methods = m.listMethods()
		return c, ""
	}
	return c, notFollowed
}

// findOnlyKey returns the only key of a map that is not empty; empty if all are. It returns false
// if the map has several keys or a regular expression, or if the key contains another variable of a
// map.
func (r *reader) findOnlyKey(m *variable) (key string, ok bool) {
	for _, e := range m.entries {
		if strings.HasPrefix(e.key, "~") {
			return key, false
		}
		if e.value == "" {
			continue
		}
		if key != "" && e.value != key {
			return key, false
		}
		key = e.value
	}
	for _, name := range aVariable.FindAllStringSubmatch(key, -1) {
		if r.variables[name[1]] != nil {
			return key, false
		}
	}
	return key, true
}

// listMethods returns the methods to which a map of $request_method gives a key.
func (v *variable) listMethods() (methods []string) {
	for _, e := range v.entries {
		if e.value != "" {
			methods = append(methods, strings.ToUpper(strings.TrimPrefix(e.key, `\`)))
		}
	}
	return methods
}

// selectNetworks sets the networks of a geo block to which a map gives a key.
func (c *counted) selectNetworks(geo, m *variable) (refused string) {
	if geo.source != "$remote_addr" && geo.source != "$binary_remote_addr" {
		return "Weir uses the client's address, not " + geo.source
	}
	// Read the networks of the geo block with their values.
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
	// Select the parts whose value has a key in the map.
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
	// All networks, or none.
	switch {
	case all:
		c.networks = nil
	case c.networks == nil:
		c.key = ""
	}
	return ""
}

// lookUp returns the value for a text, or the value of the line default.
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
