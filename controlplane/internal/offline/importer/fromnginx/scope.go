package fromnginx

import (
	"errors"
	"slices"
	"strings"

	"github.com/weir-proxy/weir/controlplane/internal/offline/importer"
)

// scopeOf returns the requests for which a group is in force, in as few matches as possible, and
// remarks about requests that they cannot leave out.
func (r *reader) scopeOf(g *group) (matches []importer.Match, remarks []string, err error) {
	for _, l := range g.levels {
		all, more, impossible := l.matches()
		if impossible != nil {
			err = impossible
			remarks = append(remarks, "left out there: "+impossible.Error())
			continue
		}
		matches = append(matches, all...)
		remarks = append(remarks, slices.DeleteFunc(more, func(one string) bool {
			return one == "" || slices.Contains(remarks, one)
		})...)
	}
	if len(matches) == 0 {
		return nil, nil, err
	}
	matches = importer.Merge(matches)
	for _, other := range r.levels {
		if slices.Contains(g.levels, other) || !r.takesFrom(other, g) {
			continue
		}
		if r.writeExempt(other) {
			continue
		}
		remarks = append(remarks, "Weir counts requests to "+other.place.text+" (line "+
			itoa(other.place.line)+") here too, nginx does not")
	}
	return matches, remarks, nil
}

// takesFrom reports whether another level takes requests from a group: a level below with other
// limits, or a more specific location of the same server.
func (r *reader) takesFrom(other *level, g *group) bool {
	for _, u := range other.inForce(g.zone.kind) {
		if slices.Contains(g.uses, u) {
			return false
		}
	}
	for _, l := range g.levels {
		for at := other.parent; at != nil; at = at.parent {
			if at == l {
				return true
			}
		}
		if other.kind == "location" && l.kind == "location" && other.parent == l.parent && other.before(l) {
			return true
		}
	}
	return false
}

// before reports whether nginx prefers a location to another for requests that both match.
func (l *level) before(other *level) bool {
	switch {
	case l.modifier == "=":
		return strings.HasPrefix(l.path, other.path) && other.modifier != "="
	case l.isExpression():
		return other.modifier != "=" && other.modifier != "^~"
	}
	return !other.isExpression() && other.modifier != "=" && len(l.path) > len(other.path) &&
		strings.HasPrefix(l.path, other.path)
}

func (l *level) isExpression() bool { return l.modifier == "~" || l.modifier == "~*" }

// writeExempt writes a location without any limit as exempt, where that says no more than the
// source: exempt paths are so for all hosts.
func (r *reader) writeExempt(l *level) bool {
	servers := 0
	for _, other := range r.levels {
		if other.kind == "server" {
			servers++
		}
	}
	if servers != 1 || l.kind != "location" || len(l.inForce("req"))+len(l.inForce("conn")) > 0 {
		return false
	}
	for _, other := range r.levels { // A location inside it may have limits.
		if other.parent == l {
			return false
		}
	}
	patterns, remark, err := l.patterns()
	if err != nil || remark != "" || len(patterns) == 0 {
		return false
	}
	for _, p := range patterns {
		if !slices.Contains(r.b.Set.Exempt.Paths, p) {
			r.b.Set.Exempt.Paths = append(r.b.Set.Exempt.Paths, p)
		}
	}
	return true
}

// matches returns the matches for the requests that a level takes.
func (l *level) matches() (all []importer.Match, remarks []string, err error) {
	m := importer.Match{}
	server := l
	for server != nil && server.kind != "server" {
		server = server.parent
	}
	if server != nil {
		var left string
		m.Hosts, left, err = server.hosts()
		if err != nil {
			return nil, nil, err
		}
		remarks = append(remarks, left)
	}
	if l.kind != "location" {
		return []importer.Match{m}, remarks, nil
	}
	var remark string
	m.Paths, remark, err = l.patterns()
	return []importer.Match{m}, append(remarks, remark), err
}

// hosts returns the names of a server, and a remark about the names that are left out; none if the
// server takes all hosts. It is an error if each name is left out.
func (l *level) hosts() (hosts []string, remark string, err error) {
	var left []string
	for _, name := range l.names {
		switch {
		case name == "_", name == "":
			return nil, "", nil
		case strings.HasPrefix(name, "~"), strings.HasSuffix(name, ".*"):
			left = append(left, name)
		case strings.HasPrefix(name, "."):
			hosts = append(hosts, name[1:], "*"+name)
		default:
			hosts = append(hosts, strings.ToLower(name))
		}
	}
	if left != nil {
		remark = "server_name " + strings.Join(left, ", ") + ": Weir's hosts have a wildcard only at the beginning"
	}
	switch {
	case hosts == nil && left != nil:
		return nil, "", errors.New(remark)
	case left != nil:
		remark = "left out there: " + remark
	}
	return hosts, remark, nil
}

// patterns returns the paths of a location; none for all paths.
func (l *level) patterns() (paths []string, remark string, err error) {
	switch {
	case strings.HasPrefix(l.path, "@"):
		return nil, "", errors.New("location " + l.path + " is for requests that nginx passes on inside itself")
	case l.modifier == "=":
		return []string{l.path}, "", nil
	case l.isExpression():
		patterns, remark, ok := importer.RegexPaths(l.path)
		if !ok || !strings.HasPrefix(l.path, "^") {
			return nil, "", errors.New("location " + l.modifier + " " + l.path +
				": no pattern of Weir takes the same paths; write the paths by hand")
		}
		if l.modifier == "~*" {
			remark = importer.Join("; ", remark, "Weir's paths are case-sensitive")
		}
		return patterns, remark, nil
	}
	paths = importer.Prefix(l.path)
	if paths != nil && !strings.HasSuffix(l.path, "/") {
		remark = "nginx's location " + l.path + " also covers " + l.path + "x, Weir's only paths below " + l.path +
			"/"
	}
	return paths, remark, nil
}
