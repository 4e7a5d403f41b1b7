package fromenvoy

import (
	"fmt"
	"slices"
	"strings"

	"github.com/weir-proxy/weir/controlplane/internal/offline/importer"
	"github.com/weir-proxy/weir/shared/quota"
)

// RateLimitService reads configurations of envoyproxy/ratelimit, a domain each. Without Envoy
// configurations the policies are for calls to the gRPC rate limit service. With them, the actions
// that fill a descriptor say which requests a policy is for, and whose bucket it is. The error is
// an *importer.SyntaxError.
func RateLimitService(configs, envoys []importer.File) (*importer.Result, error) {
	ofEnvoys, _, err := importer.Documents(envoys)
	if err != nil {
		return nil, err
	}
	domains, source, err := importer.Documents(configs)
	if err != nil {
		return nil, err
	}
	s := &service{reader: reader{used: map[*importer.Tree]bool{}}, domains: map[string]bool{}}
	for _, doc := range ofEnvoys {
		s.walkValue(doc, &scope{}, false)
	}
	s.native = len(envoys) > 0
	for _, doc := range domains {
		s.readDomain(doc)
	}
	s.b.Set.Source = source
	return s.b.Result()
}

type service struct {
	reader
	// native: policies are to be for requests at an Envoy, as far as its actions say.
	native  bool
	domains map[string]bool
}

// readDomain reads a configuration.
func (s *service) readDomain(doc *importer.Tree) {
	name := doc.Get("domain").Text()
	descriptors := doc.Get("descriptors")
	switch {
	case name == "" || len(descriptors.Items()) == 0:
		s.b.Not(doc, "configuration", "it has no domain or no descriptors, and the rate limit service refuses it")
		return
	case s.domains[name]:
		s.b.Not(doc, "domain "+name, "it is there twice, and the rate limit service refuses that")
		return
	}
	s.domains[name] = true
	for _, f := range doc.Unread() {
		s.b.Not(f.Value, f.String(), "the import does not read this field")
	}
	s.readNodes(name, descriptors.Items(), nil)
}

// step is a node on the way to a limit.
type step struct {
	key, value string
	// op is equals, prefix or present.
	op string
	// except are the values of siblings with the same key that the rate limit service prefers.
	except []importer.Value
	// shared is true if all values that the node takes have one bucket.
	shared bool
	// impossible is the reason why no condition of Weir means the same; empty if a condition does.
	impossible string
}

// String returns the step in the form of the source.
func (s step) String() string {
	if s.value == "" {
		return s.key
	}
	return s.key + "=" + s.value
}

// text returns the value without its star.
func (s step) text() string { return strings.TrimSuffix(s.value, "*") }

// maxSteps is the largest depth of nested descriptors.
const maxSteps = 32

// readNodes reads the descriptors of a level, and the descriptors inside them. above are the steps
// that lead to the level. It notes the descriptors that the rate limit service refuses or never
// uses, and leaves them out.
func (s *service) readNodes(domain string, level []*importer.Tree, above []step) {
	seen := map[string]bool{}
	for i, t := range level {
		one := stepOf(t)
		one.except = exceptionsOf(one, level, i)
		way := append(slices.Clone(above), one)
		what := domain + ": " + wayText(way)
		switch {
		case one.key == "":
			s.b.Not(t, what, "a descriptor has no key, and the rate limit service refuses that")
			continue
		case seen[one.String()]:
			s.b.Not(t, what, "it is there twice, and the rate limit service refuses that")
			continue
		case len(way) > maxSteps:
			s.b.Not(t, what, "descriptors nest too deep")
			continue
		case isHidden(one, level[:i], level):
			s.noteUnreached(what, t, 0)
			continue
		}
		seen[one.String()] = true
		s.readNode(domain, what, t, way)
		s.readNodes(domain, t.Get("descriptors").Items(), way)
	}
}

// isHidden reports whether no entry ever comes to a node: a star alone takes all values before the
// wildcards after it, and before the bare key wherever that stands.
func isHidden(one step, before, level []*importer.Tree) bool {
	if one.op == "equals" {
		return false
	}
	others := before
	if one.value == "" {
		others = level
	}
	return slices.ContainsFunc(others, func(t *importer.Tree) bool {
		other := stepOf(t)
		return other.key == one.key && other.value == "*"
	})
}

// noteUnreached notes nodes that no call comes to.
func (s *service) noteUnreached(what string, t *importer.Tree, depth int) {
	s.b.Exactly(t, what, "no call comes to it: a sibling with * takes all values")
	for _, below := range t.Get("descriptors").Items() {
		if depth < maxSteps {
			s.noteUnreached(what+" > "+stepOf(below).String(), below, depth+1)
		}
	}
}

// wayText returns the way to a limit in words.
func wayText(way []step) string {
	var texts []string
	for _, s := range way {
		texts = append(texts, s.String())
	}
	return strings.Join(texts, " > ")
}

// stepOf reads the key and the value of a node. A star in the value matches any text.
func stepOf(t *importer.Tree) step {
	one := step{key: t.Get("key").Text(), value: t.Get("value").Text()}
	one.shared = t.Get("share_threshold").Is()
	_, after, wild := strings.Cut(one.value, "*")
	switch {
	case one.value == "", one.value == "*":
		one.op = "present"
	case !wild:
		one.op = "equals"
	default:
		one.op = "prefix"
		if after != "" {
			one.impossible = "Weir has a star at the end of a value only, not " + one.value
		}
	}
	return one
}

// exceptionsOf returns the siblings that the rate limit service prefers to a node. It prefers exact
// values to all other values. It prefers wildcards, in the order of the file, to the bare key.
func exceptionsOf(one step, level []*importer.Tree, at int) (all []importer.Value) {
	if one.op == "equals" {
		return nil
	}
	for i, t := range level {
		other := stepOf(t)
		switch {
		case other.key != one.key || i == at || other.value == "":
		case other.op == "equals" && strings.HasPrefix(other.value, one.text()):
			all = append(all, importer.Value{Op: "equals", Text: other.value})
		case other.op == "prefix" && (one.value == "" || i < at):
			all = append(all, importer.Value{Op: "prefix", Text: other.text()})
		}
	}
	return all
}

// unitsOfService are the rate limit service's.
var unitsOfService = map[string]quota.Span{
	"second": quota.Second, "minute": quota.Minute, "hour": quota.Hour, "day": quota.Day, "week": 7 * quota.Day,
	"month": 30 * quota.Day, "year": 365 * quota.Day,
}

// addLimit makes the policies of a node; none if it has no limit.
func (s *service) addLimit(domain string, t *importer.Tree, way []step) (names []string, remark, impossible string) {
	// Read the quota and the window.
	limit := t.Get("rate_limit")
	n, ok := limit.Get("requests_per_unit").Int()
	window := unitsOfService[strings.ToLower(limit.Get("unit").Text())]
	switch {
	case !limit.Exists() || limit.Get("unlimited").Is():
		return nil, "", ""
	case !ok || window == 0 || n < 0 || n >= 1<<32:
		return nil, "", "requests_per_unit or unit is not read"
	}
	remark, multiplied := "", window
	if m := limit.Get("unit_multiplier"); m.Exists() {
		times, ok := m.Int()
		if !ok || times < 1 || times > int64(quota.MaxWindow/window) {
			return nil, "", "unit_multiplier is not read, or its window is longer than 366 days"
		}
		multiplied = window * quota.Span(times)
	}
	// Make the policy: for the requests at Envoy, else for calls to the service.
	p := importer.Policy{
		Name: domain + "-" + wayText(way), Algorithm: "fixed_window", Align: "utc", Mode: "strict",
		Limits: []importer.Limit{{Quota: n, Window: multiplied}},
		From:   []string{fmt.Sprintf("%s:%d: %s: %s", t.File(), t.Line(), domain, wayText(way))},
	}
	if t.Get("shadow_mode").Is() || t.Get("quota_mode").Is() {
		p.Enforcement = "shadow"
	}
	policies, other := s.atEnvoy(domain, way, p)
	remark = importer.Join("; ", remark, other)
	if len(policies) == 0 {
		forCalls, reason := ofCalls(domain, way, p)
		if reason != "" {
			return nil, "", reason
		}
		policies = []importer.Policy{forCalls}
	}
	// Add the policies.
	for _, p := range policies {
		name, refused := s.b.Add(p)
		if refused != "" {
			return names, remark, refused
		}
		names = append(names, name)
	}
	return names, remark, ""
}

// ofCalls returns the policy for calls to the gRPC rate limit service.
func ofCalls(domain string, way []step, p importer.Policy) (importer.Policy, string) {
	p.Match = importer.Match{Domain: domain}
	for _, one := range way {
		if one.impossible != "" {
			return p, one.impossible
		}
		for _, e := range one.except {
			if strings.Contains(e.Text, "*") {
				return p, "Weir has a star at the end of a value only, not " + e.Text + " of a sibling"
			}
		}
		p.Match.Descriptors = append(p.Match.Descriptors, importer.Entry{
			Name: one.key, Value: importer.Value{Op: one.op, Text: one.text()}, Except: one.except,
		})
		part := "descriptor:" + one.key
		if one.op != "equals" && !one.shared && !slices.Contains(p.Partition, part) {
			p.Partition = append(p.Partition, part)
		}
	}
	if len(p.Partition) > 0 {
		p.IfAbsent = "shared" // The rate limit service counts empty values too.
	}
	return p, ""
}
