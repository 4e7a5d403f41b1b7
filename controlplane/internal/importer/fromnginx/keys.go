package fromnginx

import (
	"errors"
	"net/netip"
	"regexp"
	"slices"
	"strings"

	crossplane "github.com/nginxinc/nginx-go-crossplane"

	"github.com/weir-proxy/weir/controlplane/internal/importer"
)

// variable is what a map or a geo block defines.
type variable struct {
	place
	isGeo bool
	// source is the text that a map looks up, or the address that a geo block does.
	source  string
	entries []entry
	// hostnames: the keys of a map may be masks of host names. broken says what the import does not
	// read; empty for nothing.
	hostnames bool
	broken    string
	used      bool
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
		value := strings.Join(e.Args, " ")
		switch {
		case e.Directive == "hostnames":
			v.hostnames = true
		case e.Directive == "volatile":
		case e.Directive == "include", v.isGeo &&
			slices.Contains([]string{"ranges", "delete", "proxy", "proxy_recursive"}, e.Directive):
			v.broken = e.Directive + " in this block is not read"
		default:
			v.entries = append(v.entries, entry{e.Directive, value})
		}
	}
	r.variables[strings.TrimPrefix(name, "$")] = v
}

// branch is a case of a key: the requests that it is for, and its text.
type branch struct {
	match importer.Match
	text  string
	// networks: the client's address is in one of them; nil is any.
	networks []netip.Prefix
	// remarks are what differs.
	remarks []string
}

// Bounds of what a key may become.
const (
	maxBranches = 64
	maxChain    = 8
)

var aVariable = regexp.MustCompile(`\$\{?([a-zA-Z0-9_]+)\}?`)

// branches are the cases of a key that are counted: nginx does not count an empty one.
func (r *reader) branches(key string) ([]branch, error) {
	all, err := r.resolve(key, 0)
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(all, func(b branch) bool { return b.text == "" }), nil
}

// resolve follows a key that is a single variable of a map or geo block to the texts that it may
// have. Other keys are one case.
func (r *reader) resolve(key string, depth int) ([]branch, error) {
	name := aVariable.FindStringSubmatch(key)
	if name == nil || name[0] != key || r.variables[name[1]] == nil {
		return r.inner(key)
	}
	v := r.variables[name[1]]
	v.used = true
	switch {
	case depth > maxChain:
		return nil, errors.New("the maps refer to each other in too long a chain")
	case v.broken != "":
		return nil, errors.New(v.place.String() + ": " + v.broken)
	case v.isGeo:
		return v.geo()
	}
	return r.mapped(v, depth)
}

// inner is a key that is no map; a map inside a longer key cannot be followed.
func (r *reader) inner(key string) ([]branch, error) {
	for _, name := range aVariable.FindAllStringSubmatch(key, -1) {
		if v := r.variables[name[1]]; v != nil {
			v.used = true
			return nil, errors.New("the import follows a map only if it is the whole key, not in " + key)
		}
	}
	return []branch{{text: key}}, nil
}

// geo are the cases of a geo block.
func (v *variable) geo() ([]branch, error) {
	if v.source != "$remote_addr" && v.source != "$binary_remote_addr" {
		return nil, errors.New(v.place.String() + ": Weir goes by the client's address, not by " + v.source)
	}
	fallback, networks, values := "", []netip.Prefix(nil), []string(nil)
	for _, e := range v.entries {
		if e.key == "default" {
			fallback = e.value
			continue
		}
		network, ok := importer.ParseNetwork(e.key)
		if !ok {
			return nil, errors.New(v.place.String() + ": " + e.key + " is no network")
		}
		networks, values = append(networks, network), append(values, e.value)
	}
	byValue := map[string][]netip.Prefix{}
	var order []string
	for _, part := range importer.Longest(networks) {
		value := fallback
		if part.Of >= 0 {
			value = values[part.Of]
		}
		if byValue[value] == nil {
			order = append(order, value)
		}
		byValue[value] = append(byValue[value], part.Network)
	}
	var all []branch
	for _, value := range order {
		all = append(all, branch{text: value, networks: byValue[value]})
	}
	return all, nil
}

// mapped are the cases of a map.
func (r *reader) mapped(v *variable, depth int) ([]branch, error) {
	sources, err := r.resolve(v.source, depth+1)
	if err != nil {
		return nil, err
	}
	var all []branch
	for _, s := range sources {
		cases, err := v.cases(s)
		if err != nil {
			return nil, err
		}
		all = append(all, cases...)
		if len(all) > maxBranches {
			return nil, errors.New(v.place.String() + ": has more cases than make sense as policies")
		}
	}
	// What the values of the map refer to.
	var final []branch
	for _, b := range all {
		deeper, err := r.resolve(b.text, depth+1)
		if err != nil {
			return nil, err
		}
		for _, d := range deeper {
			if b.networks != nil && d.networks != nil || !d.match.Everywhere() && !b.match.Everywhere() {
				return nil, errors.New(v.place.String() +
					": its cases lead to further cases, which one match cannot say")
			}
			joined := b
			joined.text = d.text
			joined.remarks = append(slices.Clone(b.remarks), d.remarks...)
			if d.networks != nil {
				joined.networks = d.networks
			}
			if !d.match.Everywhere() {
				joined.match = d.match
			}
			final = append(final, joined)
		}
	}
	return final, nil
}

// cases are those of a map for one case of its source: a text that is fixed, or a variable of the
// request.
func (v *variable) cases(s branch) ([]branch, error) {
	if !strings.Contains(s.text, "$") {
		s.text = v.lookUp(s.text)
		return []branch{s}, nil
	}
	if !s.match.Everywhere() || s.networks != nil {
		return nil, errors.New(v.place.String() + ": its source has cases of its own, which one match cannot say")
	}
	found := aVariable.FindStringSubmatch(s.text)
	if found == nil || found[0] != s.text {
		return nil, errors.New(v.place.String() + ": a match has no word for " + s.text)
	}
	name := found[1]
	switch {
	case name == "remote_addr":
		return (&variable{place: v.place, source: "$remote_addr", entries: v.entries}).geo()
	case name == "request_method":
		return v.byMethod(), nil
	case strings.HasPrefix(name, "http_"):
		return v.byHeader(strings.ReplaceAll(strings.TrimPrefix(name, "http_"), "_", "-"))
	case name == "uri", name == "request_uri", name == "document_uri":
		return v.byPath()
	}
	return nil, errors.New(v.place.String() + ": a match has no word for $" + name)
}

// fallback is the value for what no entry names.
func (v *variable) fallback() string {
	for _, e := range v.entries {
		if e.key == "default" {
			return e.value
		}
	}
	return ""
}

// lookUp is the value of a fixed text.
func (v *variable) lookUp(text string) string {
	for _, e := range v.entries {
		if e.key != "default" && strings.EqualFold(strings.TrimPrefix(e.key, `\`), text) {
			return e.value
		}
	}
	for _, e := range v.entries {
		expression, found := strings.CutPrefix(e.key, "~")
		if !found {
			continue
		}
		if rest, folded := strings.CutPrefix(expression, "*"); folded {
			expression = "(?i)" + rest
		}
		if compiled, err := regexp.Compile(expression); err == nil && compiled.MatchString(text) {
			return e.value
		}
	}
	return v.fallback()
}

// methods are those that requests usually have.
var methods = []string{"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"}

func (v *variable) byMethod() (all []branch) {
	byValue := map[string][]string{}
	var order []string
	for _, m := range methods {
		value := v.lookUp(m)
		if byValue[value] == nil {
			order = append(order, value)
		}
		byValue[value] = append(byValue[value], m)
	}
	for _, value := range order {
		b := branch{text: value, match: importer.Match{Methods: byValue[value]}}
		if value == v.fallback() {
			b.remarks = []string{"other methods than the usual ones are not counted"}
		}
		all = append(all, b)
	}
	return all
}

// byHeader are the cases by a header. Weir has no condition for a header that is there with other
// values than some.
func (v *variable) byHeader(name string) ([]branch, error) {
	var all []branch
	var named []string
	absent := v.fallback()
	for _, e := range v.entries {
		switch {
		case e.key == "default":
		case e.key == "":
			absent = e.value
		case strings.HasPrefix(e.key, "~"):
			return nil, errors.New(v.place.String() + ": a match has no regular expressions for headers")
		default:
			named = append(named, e.key)
			all = append(all, branch{text: e.value, match: importer.Match{
				Headers: []importer.Header{{Name: name, Op: "equals", Value: strings.TrimPrefix(e.key, `\`)}}}})
		}
	}
	all = append(all, branch{text: absent,
		match: importer.Match{Headers: []importer.Header{{Name: name, Op: "absent"}}}})
	other := branch{text: v.fallback(), match: importer.Match{Headers: []importer.Header{{Name: name, Op: "present"}}}}
	if len(named) > 0 && other.text != "" {
		other.remarks = []string{"Weir counts requests with " + name + ": " + strings.Join(named, ", ") +
			" here too, since a match has no \"not equal\""}
	}
	if len(named) == 0 && other.text == absent {
		return []branch{{text: absent}}, nil
	}
	return append(all, other), nil
}

func (v *variable) byPath() ([]branch, error) {
	var all []branch
	for _, e := range v.entries {
		patterns, remark, ok := []string{e.key}, "", e.key != "default"
		if expression, found := strings.CutPrefix(e.key, "~"); found {
			patterns, remark, ok = importer.RegexPaths(strings.TrimPrefix(expression, "*"))
			if !ok {
				return nil, errors.New(v.place.String() + ": no pattern of Weir says the same as " + e.key)
			}
		}
		if !ok {
			continue
		}
		all = append(all, branch{text: e.value, match: importer.Match{Paths: patterns},
			remarks: remarksOf(remark)})
	}
	other := branch{text: v.fallback()}
	if len(all) > 0 && other.text != "" {
		other.remarks = []string{"Weir counts the paths that the map names here too, since a match has no \"not\""}
	}
	return append(all, other), nil
}

func remarksOf(text string) []string {
	if text == "" {
		return nil
	}
	return []string{text}
}
