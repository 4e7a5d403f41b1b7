package fromkube

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/weir-proxy/weir/controlplane/internal/offline/importer"
	"github.com/weir-proxy/weir/shared/quota"
)

// ImportGateway reads the rate limits of Envoy Gateway's BackendTrafficPolicy. The routes that they
// are for must be among the files. The error is an *importer.SyntaxError.
func ImportGateway(files []importer.File) (*importer.Result, error) {
	all, source, err := readObjects(files)
	if err != nil {
		return nil, err
	}
	r := &gateway{objects: all}
	r.b.Set.Source = source
	for _, o := range all {
		if o.kind == "BackendTrafficPolicy" {
			r.trafficPolicy(o)
		}
	}
	return r.b.Result()
}

type gateway struct {
	b       importer.Builder
	objects []object
}

// trafficPolicy reads one object with its global and its local rules.
func (r *gateway) trafficPolicy(o object) {
	limit := o.tree.Path("spec", "rateLimit")
	limit.Get("type")
	for _, kind := range []string{"global", "local"} {
		part := limit.Get(kind)
		for n, t := range part.Get("rules").Items() {
			rule := rule{r: r, of: o, tree: t, number: n, local: kind == "local"}
			rule.shared = part.Get("shared").Is() || t.Get("shared").Is()
			rule.others = len(part.Get("rules").Items()) > 1
			rule.read()
		}
		for _, f := range part.Unread() {
			r.b.Not(f.Value, o.String()+": "+f.String(), "there is no such setting in Weir")
		}
	}
	for _, f := range limit.Unread() {
		r.b.Not(f.Value, o.String()+": "+f.String(), "there is no such setting in Weir")
	}
}

// rule turns a rule into policies.
type rule struct {
	r             *gateway
	of            object
	tree          *importer.Tree
	number        int
	local, shared bool
	// others is true if the object has further rules.
	others     bool
	policy     importer.Policy
	remarks    []string
	impossible string
	// restricts: the rule is for some clients only.
	restricts bool
}

func (u *rule) addRemark(text string) { u.remarks = append(u.remarks, text) }

func (u *rule) addImpossible(text string) { u.impossible = importer.Join("; ", u.impossible, text) }

// read makes the policies of the rule and notes its verdict.
func (u *rule) read() {
	limit := u.tree.Get("limit")
	what := fmt.Sprintf("%s: rule %d: %s per %s", u.of, u.number+1, limit.Get("requests").Short(),
		limit.Get("unit").Text())
	u.policy.Name = fmt.Sprintf("%s-%d", u.of.name, u.number+1)
	u.policy.From = []string{fmt.Sprintf("%s:%d: %s", u.tree.File(), u.tree.Line(), what)}
	u.readLimit(limit)
	for _, s := range u.tree.Get("clientSelectors").Items() {
		u.addSelector(s)
	}
	u.readCost()
	if u.tree.Get("shadowMode").Is() {
		u.policy.Enforcement = "shadow"
	}
	for _, f := range u.tree.Unread() {
		u.addImpossible("the field " + f.Name + " is not read")
	}
	if u.local && !u.restricts && u.others {
		u.addRemark("Envoy Gateway takes from it only if no other rule is for the request, Weir always")
	}
	var names []string
	for _, m := range u.listMatches() {
		p := u.policy
		one, ok := joinBoth(m, u.policy.Match)
		if !ok {
			u.addImpossible("its conditions and the route's conditions cannot be said in one match")
		}
		p.Match = one
		if len(m.Hosts) > 1 && !u.shared {
			p.Partition = append(slices.Clone(p.Partition), "host") // Each host has a counter of its own.
		}
		if u.impossible != "" {
			break
		}
		name, refused := u.r.b.Add(p)
		if refused != "" {
			u.addImpossible(refused)
		}
		names = append(names, name)
	}
	switch remarks := importer.Join("; ", u.remarks...); {
	case u.impossible != "":
		u.r.b.Not(u.tree, what, u.impossible)
	case remarks != "":
		u.r.b.Nearly(u.tree, what, remarks, names...)
	default:
		u.r.b.Exactly(u.tree, what, "", names...)
	}
}

var units = map[string]quota.Span{
	"Second": quota.Second, "Minute": quota.Minute, "Hour": quota.Hour, "Day": quota.Day, "Month": 30 * quota.Day,
	"Year": 365 * quota.Day,
}

// readLimit reads the limit. A global rule is a fixed window of the rate limit service. A local
// rule is a token bucket in each Envoy.
func (u *rule) readLimit(limit *importer.Tree) {
	n, ok := limit.Get("requests").Int()
	window, known := units[limit.Get("unit").Text()]
	if !ok || !known {
		u.addImpossible("its limit is not read")
		return
	}
	u.policy.Limits = []importer.Limit{{Quota: n, Window: window}}
	for _, f := range limit.Unread() {
		u.addImpossible("the field limit." + f.Name + " is not read")
	}
	if u.local {
		u.policy.Mode = "local"
		return
	}
	u.policy.Algorithm, u.policy.Align, u.policy.Mode = "fixed_window", "utc", "strict"
	u.policy.OnFailure = []string{"allow"}
}

// addSelector adds the conditions of a selector. The conditions of all selectors must hold.
func (u *rule) addSelector(t *importer.Tree) {
	u.restricts = true
	m := &u.policy.Match
	// Headers and addresses.
	for _, h := range t.Get("headers").Items() {
		u.addHeader(h)
	}
	if cidr := t.Get("sourceCIDR"); cidr.Exists() {
		network, ok := importer.ParseNetwork(cidr.Get("value").Text())
		if !ok || cidr.Get("invert").Is() || len(m.ClientIPs) > 0 {
			u.addImpossible("sourceCIDR " + cidr.Get("value").Text() + " cannot be said in a match")
		}
		m.ClientIPs = importer.Networks([]netip.Prefix{network})
		if cidr.Get("type").Text() == "Distinct" {
			u.policy.Partition = append(u.policy.Partition, "client_ip")
			if network.Addr().Is6() {
				u.r.b.Set.Identity.ClientIP.IPv6Prefix = 128
			}
		}
	}
	// Methods and paths.
	for _, method := range t.Get("methods").Several() {
		if method.Get("invert").Is() {
			u.addImpossible("methods with invert cannot be said in a match")
		}
		m.Methods = append(m.Methods, method.Get("value").Or(method.Text()))
	}
	if path := t.Get("path"); path.Exists() {
		paths, reason := u.pathPatterns(path)
		if path.Get("invert").Is() {
			reason = "a path with invert cannot be said in a match"
		}
		u.addImpossible(reason)
		m.Paths = paths
	}
	// Other fields cannot be carried over.
	for _, f := range t.Unread() {
		u.addImpossible(f.Name + " of a client selector is not read")
	}
}

// addHeader adds a condition on a header, or with Distinct a part of the key.
func (u *rule) addHeader(t *importer.Tree) {
	name := strings.ToLower(t.Get("name").Text())
	h := importer.Header{Name: name, Op: "equals", Value: t.Get("value").Text()}
	switch kind := t.Get("type").Or("Exact"); {
	case t.Get("invert").Is():
		u.addImpossible("header " + name + ": Weir has no condition \"not equal\"")
	case kind == "Distinct":
		u.policy.Partition = append(u.policy.Partition, "header:"+name)
	case kind == "Exact":
		u.policy.Match.Headers = append(u.policy.Match.Headers, h)
	default:
		u.addImpossible("header " + name + ": Weir has no regular expressions for headers")
	}
}

// pathPatterns returns the patterns for a path match of Gateway API.
func (u *rule) pathPatterns(t *importer.Tree) (paths []string, reason string) {
	value := t.Get("value").Or("/")
	switch t.Get("type").Or("PathPrefix") {
	case "Exact":
		return []string{value}, ""
	case "PathPrefix":
		return importer.Prefix(value), ""
	}
	patterns, remark, ok := importer.RegexPaths(strings.TrimSuffix(value, "$") + "$")
	if !ok {
		return nil, "path " + value + ": no pattern of Weir takes the same paths as this expression"
	}
	if remark != "" {
		u.addRemark(remark)
	}
	return patterns, ""
}

// readCost reads the cost of a request. Envoy adds the cost of the response to it. In Weir the
// response settles the tokens that the request has reserved.
func (u *rule) readCost() {
	request, response := u.tree.Path("cost", "request"), u.tree.Path("cost", "response")
	switch from := response.Get("from").Text(); from {
	case "":
	case "Metadata":
		metadata := response.Get("metadata")
		u.policy.Cost.Commit = metadata.Get("namespace").Text() + "/" + metadata.Get("key").Text()
	default:
		u.addImpossible("a cost of the response from " + from + " is one of the request for Weir: add it there")
	}
	switch request.Get("from").Text() {
	case "":
	case "Number":
		n, ok := request.Get("number").Int()
		if !ok || n < 1 && u.policy.Cost.Commit == "" {
			u.addImpossible("a cost of " + request.Get("number").Short() + " charges nothing")
		}
		u.policy.Cost.Reserve = n
	default:
		u.addImpossible("write it by hand: cost: {metadata: NAMESPACE/KEY, max: MOST}, since Weir needs the " +
			"most that counts")
	}
	switch {
	case u.policy.Cost.Commit == "":
	case request.Get("number").Text() == "0":
		u.addRemark("a request reserves 1 until its response says the cost")
	default:
		u.addRemark("the response's cost counts in place of the request's, to which Envoy Gateway adds it")
	}
}
