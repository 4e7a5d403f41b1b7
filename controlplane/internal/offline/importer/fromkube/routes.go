package fromkube

import (
	"slices"
	"strings"

	"github.com/weir-proxy/weir/controlplane/internal/offline/importer"
)

// listMatches returns the requests that a rule is for, by the targets of its object. Envoy Gateway
// counts each match of a route by itself unless the rule is shared.
func (u *rule) listMatches() (matches []importer.Match) {
	// Collect the targets.
	spec := u.of.tree.Get("spec")
	targets := spec.Get("targetRefs").Items()
	if one := spec.Get("targetRef"); one.Exists() {
		targets = append(slices.Clone(targets), one)
	}
	if spec.Get("targetSelectors").Exists() || len(targets) == 0 {
		u.addImpossible("the import follows targetRefs, not targetSelectors")
	}
	// Find the matches of each target.
	for _, target := range targets {
		kind, name := target.Get("kind").Text(), target.Get("name").Text()
		switch kind {
		case "Gateway":
			if !u.shared {
				u.addRemark("Envoy Gateway counts each route by itself, Weir all together: host and policy_path in " +
					"the partition, or a policy for each route, keep them apart")
			}
			matches = append(matches, importer.Match{})
		default:
			matches = append(matches, u.routeMatches(kind, name, target.Get("sectionName").Text())...)
		}
	}
	// Merge the matches of a shared rule, and report overlaps of other rules.
	if u.shared {
		matches = importer.Merge(matches)
		if len(matches) > 1 {
			u.addRemark("the rule is shared, but Weir has a counter for each of the policies")
		}
		return matches
	}
	for i := range matches {
		if slices.ContainsFunc(matches[:i], func(m importer.Match) bool { return importer.Overlap(m, matches[i]) }) {
			u.addRemark("matches of the route overlap: Weir counts a request in the policies of all of them")
		}
	}
	return matches
}

// routeMatches returns the matches of a route among the files.
func (u *rule) routeMatches(kind, name, section string) (matches []importer.Match) {
	for _, o := range u.r.objects {
		if o.kind != kind || o.name != name || o.namespace != u.of.namespace {
			continue
		}
		var hosts []string
		for _, host := range o.tree.Path("spec", "hostnames").Texts() {
			hosts = append(hosts, strings.ToLower(host))
		}
		for _, r := range o.tree.Path("spec", "rules").Items() {
			if section != "" && r.Get("name").Text() != section {
				continue
			}
			conditions := r.Get("matches").Items()
			if len(conditions) == 0 {
				matches = append(matches, importer.Match{Hosts: hosts})
			}
			for _, t := range conditions {
				matches = append(matches, u.readMatch(t, hosts))
			}
		}
		return matches
	}
	u.addImpossible("none of the files has " + kind + " " + name + ": name the file that has it too")
	return nil
}

// readMatch returns one match of a route.
func (u *rule) readMatch(t *importer.Tree, hosts []string) importer.Match {
	m := importer.Match{Hosts: hosts}
	if path := t.Get("path"); path.Exists() {
		paths, reason := u.pathPatterns(path)
		u.addImpossible(reason)
		m.Paths = paths
	}
	if method := t.Get("method"); method.IsMap() { // a method of a GRPCRoute
		service, call := method.Get("service").Text(), method.Get("method").Text()
		switch {
		case service == "" || method.Get("type").Or("Exact") != "Exact":
			u.addImpossible("the route's method cannot be said as a path")
		case call == "":
			m.Paths = []string{"/" + service + "/**"}
		default:
			m.Paths = []string{"/" + service + "/" + call}
		}
	} else if method.Exists() {
		m.Methods = []string{method.Text()}
	}
	for _, h := range t.Get("headers").Items() {
		if h.Get("type").Or("Exact") != "Exact" {
			u.addImpossible("the route's header " + h.Get("name").Text() +
				": Weir has no regular expressions for headers")
		}
		m.Headers = append(m.Headers, importer.Header{
			Name: strings.ToLower(h.Get("name").Text()), Op: "equals", Value: h.Get("value").Text()})
	}
	for _, f := range t.Unread() {
		u.addImpossible("the route has the condition " + f.Name + ", which no match of Weir can express")
	}
	return m
}

// joinBoth joins the match of a route with the match of a rule; false if no match can express both.
func joinBoth(route, of importer.Match) (importer.Match, bool) {
	if len(route.Paths) > 0 && len(of.Paths) > 0 || len(route.Methods) > 0 && len(of.Methods) > 0 {
		return route, false
	}
	route.Paths = slices.Concat(route.Paths, of.Paths)
	route.Methods = slices.Concat(route.Methods, of.Methods)
	route.Headers = slices.Concat(route.Headers, of.Headers)
	route.ClientIPs = of.ClientIPs
	return route, true
}
