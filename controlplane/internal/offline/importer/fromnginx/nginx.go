// Package fromnginx reads configurations of nginx: limit_req and limit_conn with their zones, and
// the map and geo blocks that leave some requests out.
//
// A limit of nginx holds at its level and in all levels below without own limits, and the most
// specific location takes a request. In Weir each policy applies to all requests that it matches.
// So the import finds the levels at which a limit is in force, and names the requests that a match
// cannot leave out.
package fromnginx

import (
	"bytes"
	"fmt"
	"io"
	"strings"

	crossplane "github.com/nginxinc/nginx-go-crossplane"

	"github.com/weir-proxy/weir/controlplane/internal/offline/importer"
)

// Bounds of a configuration with all its files.
const (
	maxBytes   = 16 << 20
	maxNesting = 64
	maxFiles   = 2000
)

// Files opens the files of a configuration, by the names that it has for them.
type Files struct {
	Open func(name string) ([]byte, error)
	// Glob lists the files that a pattern of an include names.
	Glob func(pattern string) ([]string, error)
}

// Import reads a configuration and the files that it includes. The error is an
// *importer.SyntaxError.
func Import(name string, files Files) (*importer.Result, error) {
	r := &reader{zones: map[string]*zone{}, variables: map[string]*variable{}}
	r.b.Set.Source = name
	r.b.Set.Identity.ClientIP.IPv6Prefix = 128 // nginx counts each address.
	payload, err := parseFiles(name, files)
	if err != nil {
		return nil, err
	}
	for _, e := range payload.Errors {
		line := 0
		if e.Line != nil {
			line = *e.Line
		}
		r.b.Say(importer.Item{File: e.File, Line: line, What: "configuration", Verdict: importer.NotPossible,
			Reason: strings.ReplaceAll(e.Error.Error(), "\n", " ")})
	}
	r.payload = payload
	root := &level{kind: "main"}
	r.levels = append(r.levels, root)
	r.readFile(root, 0, 0)
	r.addPolicies()
	r.noteLeftovers()
	return r.b.Result()
}

// parseFiles reads the files. Nesting is bounded before the parser, which recurses, sees them.
func parseFiles(name string, files Files) (*crossplane.Payload, error) {
	// Bound the size, the number and the nesting of the files.
	total, count := 0, 0
	var refused error
	open := func(path string) (io.ReadCloser, error) {
		text, err := files.Open(path)
		if err != nil {
			return nil, err
		}
		total += len(text)
		count++
		switch {
		case total > maxBytes:
			refused = &importer.SyntaxError{File: path,
				Reason: fmt.Sprintf("the files are larger than %d bytes", maxBytes)}
		case count > maxFiles:
			refused = &importer.SyntaxError{File: path, Reason: fmt.Sprintf("there are more than %d files", maxFiles)}
		case nestingDepth(text) > maxNesting:
			refused = &importer.SyntaxError{File: path,
				Reason: fmt.Sprintf("blocks nest deeper than %d levels", maxNesting)}
		}
		if refused != nil {
			return nil, refused
		}
		return io.NopCloser(bytes.NewReader(text)), nil
	}
	// Parse the file and its includes.
	payload, err := crossplane.Parse(name, &crossplane.ParseOptions{
		Open: open, Glob: files.Glob, SkipDirectiveContextCheck: true, SkipDirectiveArgsCheck: true,
	})
	if refused != nil {
		return nil, refused
	}
	if err != nil {
		return nil, &importer.SyntaxError{File: name, Reason: strings.ReplaceAll(err.Error(), "\n", " ")}
	}
	return payload, nil
}

// nestingDepth returns how deep blocks nest at most; braces in texts and comments count as well.
func nestingDepth(text []byte) (deepest int) {
	depth := 0
	for _, c := range text {
		switch c {
		case '{':
			depth++
			deepest = max(deepest, depth)
		case '}':
			depth--
		}
	}
	return deepest
}

type reader struct {
	b       importer.Builder
	payload *crossplane.Payload
	// zones are keyed by kind and name, as in req api.
	zones     map[string]*zone
	variables map[string]*variable
	// levels are the file itself, of which a part may be all there is, http, servers and locations.
	levels []*level
	// byAddress: a zone counts addresses. realIP are the directives that change them.
	byAddress bool
	realIP    []place
	visits    int
}

// place is the place of a directive, with its text.
type place struct {
	file string
	line int
	text string
}

func (p place) item(v importer.Verdict, reason string, policies ...string) importer.Item {
	return importer.Item{File: p.file, Line: p.line, What: p.text, Verdict: v, Reason: reason, Policies: policies}
}

func (p place) String() string { return fmt.Sprintf("%s:%d: %s", p.file, p.line, p.text) }

// level is http, a server or a location.
type level struct {
	kind   string
	parent *level
	place  place
	// names are the names of a server. modifier and path belong to a location.
	names          []string
	modifier, path string
	// own are its limits by kind, req or conn; inherited from the parent if there are none.
	own map[string][]*use
	// set are its other directives about limits, like limit_req_status.
	set map[string]place
}

// use is a limit_req or limit_conn.
type use struct {
	place
	kind string
	args []string
	// written are the levels at which a policy says it.
	written []*level
}

// zone is a limit_req_zone or limit_conn_zone.
type zone struct {
	place
	kind, name, key string
	rate            string
	used            bool
	policies        []string
}

// maxVisits bounds the directives that are read; files that include each other repeat them.
const maxVisits = 1_000_000

// readFile takes in the directives of a file, below a level.
func (r *reader) readFile(at *level, file, depth int) {
	if file < len(r.payload.Config) && depth <= maxNesting {
		c := r.payload.Config[file]
		r.readBlock(at, c.File, c.Parsed, depth)
	}
}

func (r *reader) readBlock(at *level, file string, directives crossplane.Directives, depth int) {
	for _, d := range directives {
		// The number of directives is bounded.
		r.visits++
		if r.visits > maxVisits {
			return
		}
		p := place{file, d.Line, strings.TrimSpace(d.Directive + " " + strings.Join(d.Args, " "))}
		// Read the directives that open levels or concern limits.
		switch {
		case d.Directive == "include":
			for _, n := range d.Includes {
				r.readFile(at, n, depth+1)
			}
		case d.Directive == "http", d.Directive == "server", d.Directive == "location":
			below := &level{kind: d.Directive, parent: at, place: p}
			below.readLocation(d.Args)
			r.levels = append(r.levels, below)
			r.readBlock(below, file, d.Block, depth+1)
		case d.Directive == "map" || d.Directive == "geo":
			r.readVariable(d, p)
		case d.Directive == "stream" || d.Directive == "mail":
			r.notHTTP(file, d.Block, d.Directive)
		case strings.HasPrefix(d.Directive, "limit_"):
			r.readDirective(at, d, p)
		case d.Directive == "server_name":
			at.names = append(at.names, d.Args...)
		case d.Directive == "set_real_ip_from", d.Directive == "real_ip_header", d.Directive == "real_ip_recursive":
			r.realIP = append(r.realIP, p)
		case d.IsBlock():
			r.readBlock(at, file, d.Block, depth+1)
		}
	}
}

// notHTTP notes limits of protocols that are not HTTP.
func (r *reader) notHTTP(file string, directives crossplane.Directives, kind string) {
	for _, d := range directives {
		if strings.HasPrefix(d.Directive, "limit_") {
			p := place{file, d.Line, strings.TrimSpace(d.Directive + " " + strings.Join(d.Args, " "))}
			r.b.Say(p.item(importer.NotPossible, "it limits connections of "+kind+", and Weir limits HTTP requests: "+
				"Envoy's filters for TCP do that (local_ratelimit, connection_limit)"))
		}
		r.notHTTP(file, d.Block, kind)
	}
}

// readLocation reads the arguments of the directive location.
func (l *level) readLocation(args []string) {
	if l.kind != "location" || len(args) == 0 {
		return
	}
	l.path = args[len(args)-1]
	if len(args) > 1 {
		l.modifier = args[0]
		return
	}
	for _, modifier := range []string{"=", "~*", "~", "^~"} {
		if rest, found := strings.CutPrefix(l.path, modifier); found {
			l.modifier, l.path = modifier, rest
			return
		}
	}
}

// readDirective takes in a directive about limits.
func (r *reader) readDirective(at *level, d *crossplane.Directive, p place) {
	switch d.Directive {
	// A zone: its key, its name and its rate.
	case "limit_req_zone", "limit_conn_zone":
		z := &zone{place: p, kind: strings.TrimSuffix(strings.TrimPrefix(d.Directive, "limit_"), "_zone")}
		for i, arg := range d.Args {
			if name, found := strings.CutPrefix(arg, "zone="); found {
				z.name, _, _ = strings.Cut(name, ":")
			} else if rate, found := strings.CutPrefix(arg, "rate="); found {
				z.rate = rate
			} else if i == 0 {
				z.key = arg
			}
		}
		if r.zones[z.kind+" "+z.name] != nil {
			r.b.Say(p.item(importer.NotPossible, "the zone is there twice"))
			return
		}
		r.zones[z.kind+" "+z.name] = z
	// A limit at this level.
	case "limit_req", "limit_conn":
		kind := strings.TrimPrefix(d.Directive, "limit_")
		if at.own == nil {
			at.own = map[string][]*use{}
		}
		at.own[kind] = append(at.own[kind], &use{place: p, kind: kind, args: d.Args})
	// limit_except allows methods and limits no rate. No policy of Weir slows a response.
	case "limit_except":
	case "limit_rate", "limit_rate_after":
		r.b.Say(p.item(importer.NotPossible, "it limits the speed of a response, not requests: Envoy's "+
			"bandwidth_limit filter does that"))
	// A setting of limits.
	default:
		if at.set == nil {
			at.set = map[string]place{}
		}
		if _, twice := at.set[d.Directive]; twice {
			r.b.Say(p.item(importer.NotPossible, "it is there twice"))
			return
		}
		at.set[d.Directive] = p
	}
}
