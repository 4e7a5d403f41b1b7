package fromkube

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/weir-proxy/weir/controlplane/internal/offline/importer"
	"github.com/weir-proxy/weir/shared/quota"
)

// prefix is the prefix of ingress-nginx's annotations.
const prefix = "nginx.ingress.kubernetes.io/"

// defaultMultiplier times its rate is the burst of a limit.
const defaultMultiplier = 5

// ImportIngress reads the annotations of ingress-nginx that limit requests. The controller's
// ConfigMap may be among the files. The error is an *importer.SyntaxError.
func ImportIngress(files []importer.File) (*importer.Result, error) {
	all, source, err := readObjects(files)
	if err != nil {
		return nil, err
	}
	r := &ingresses{status: map[string]int64{"limit-req-status-code": 503, "limit-conn-status-code": 503}}
	r.b.Set.Source = source
	r.b.Set.Identity.ClientIP.IPv6Prefix = 128 // nginx counts each address.
	for _, o := range all {
		if o.kind == "ConfigMap" {
			r.configMap(o)
		}
	}
	lists := map[string]bool{}
	for _, o := range all {
		if o.kind == "Ingress" && hasLimit(o) {
			lists[findAnnotation(o, "limit-whitelist", "limit-allowlist").Text()] = true
		}
	}
	r.common = len(lists) == 1
	for _, o := range all {
		if o.kind == "Ingress" {
			r.readIngress(o)
		}
	}
	return r.b.Result()
}

type ingresses struct {
	b importer.Builder
	// status is the status of a refusal, by the name of the setting.
	status map[string]int64
	// common: all ingresses with limits have the same list of addresses that are not limited.
	common bool
}

// configMap reads the settings of the controller that concern limits.
func (r *ingresses) configMap(o object) {
	for _, f := range o.tree.Get("data").Fields() {
		switch f.Name {
		case "limit-req-status-code", "limit-conn-status-code":
			if n, ok := f.Value.Int(); ok && n >= 400 && n <= 599 {
				r.status[f.Name] = n
				r.b.Exactly(f.Value, f.String(), "")
				continue
			}
			r.b.Not(f.Value, f.String(), "is no status from 400 to 599")
		case "limit-rate", "limit-rate-after", "limit-conn-zone-variable":
			r.b.Not(f.Value, f.String(), notLimits[f.Name])
		case "use-forwarded-headers", "proxy-real-ip-cidr", "use-proxy-protocol", "forwarded-for-header",
			"compute-full-forwarded-for", "enable-real-ip":
			r.b.Nearly(f.Value, f.String(), "set identity.client_ip.trusted_hops to the number of proxies between "+
				"the client and Envoy")
		default:
			if strings.HasPrefix(f.Name, "global-rate-limit") {
				r.b.Exactly(f.Value, f.String(), "not needed: the control plane has a store of its own (--redis-url)")
			}
		}
	}
}

// notLimits says why annotations are left out.
var notLimits = map[string]string{
	"limit-rate": "it limits the speed of a response, not requests: Envoy's bandwidth_limit filter " +
		"does that",
	"limit-rate-after": "it limits the speed of a response, not requests: Envoy's bandwidth_limit filter " +
		"does that",
	"limit-conn-zone-variable": "Weir's limits of ingresses count client addresses: change the partition of the " +
		"policies",
}

func findAnnotation(o object, names ...string) *importer.Tree {
	for _, name := range names {
		if t := o.tree.Path("metadata", "annotations").Get(prefix + name); t.Exists() {
			return t
		}
	}
	return nil
}

// hasLimit reports whether an ingress has a limit.
func hasLimit(o object) bool {
	return findAnnotation(o, "limit-rps", "limit-rpm", "limit-connections").Exists()
}

// conversion turns an ingress into policies.
type conversion struct {
	r          *ingresses
	of         object
	remarks    []string
	impossible string
	names      []string
}

func (r *ingresses) readIngress(o object) {
	c := conversion{r: r, of: o}
	matches := c.listMatches()
	rates := importer.Policy{
		Name: "ingress-" + o.namespace + "-" + o.name, Partition: []string{"client_ip"}, Mode: "local",
		From: []string{fmt.Sprintf("%s:%d: %s", o.tree.File(), o.tree.Path("metadata", "annotations").Line(), o)},
	}
	connections := rates
	connections.Name += "-connections"
	c.readRates(&rates)
	c.readConnections(&connections)
	except := c.allowedNetworks()
	if len(matches) > 1 {
		c.remarks = append(c.remarks,
			"ingress-nginx has one counter for the whole ingress, Weir has one counter for each policy")
	}
	c.addPolicies(rates, r.status["limit-req-status-code"], matches, except)
	c.addPolicies(connections, r.status["limit-conn-status-code"], matches, except)
	c.noteAnnotations()
}

// addPolicies makes a policy for each match, if there is a limit.
func (c *conversion) addPolicies(p importer.Policy, status int64, matches []importer.Match, except []netip.Prefix) {
	if len(p.Limits) == 0 || c.impossible != "" {
		return
	}
	if status != 429 {
		p.Response.Status = status
	}
	for _, m := range matches {
		p.Match = m
		if !c.r.common && len(except) > 0 {
			p.Match.ClientIPs = importer.Networks(importer.Outside(except))
		}
		name, refused := c.r.b.Add(p)
		c.impossible = importer.Join("; ", c.impossible, refused)
		c.names = append(c.names, name)
	}
}

// readConnections reads how many requests of an address may be in flight.
func (c *conversion) readConnections(p *importer.Policy) {
	t := findAnnotation(c.of, "limit-connections")
	n, ok := t.Int()
	switch {
	case !t.Exists() || ok && n <= 0: // 0 is no limit.
	case !ok || n > 1_000_000:
		c.impossible = "limit-connections is no number that Weir takes"
	default:
		p.Limits, p.MaxHold = []importer.Limit{{InFlight: n}}, "forever" // nginx counts none out.
	}
}

// readRates reads the two rates. ingress-nginx makes of each a limit_req with nodelay, whose burst
// is the rate times the multiplier: a token bucket of one more.
func (c *conversion) readRates(p *importer.Policy) {
	multiplier := int64(defaultMultiplier)
	if t := findAnnotation(c.of, "limit-burst-multiplier"); t.Exists() {
		n, ok := t.Int()
		if !ok || n < 1 {
			n = defaultMultiplier // As the controller does.
		}
		multiplier = n
	}
	for _, rate := range []struct {
		name   string
		window quota.Span
	}{{"limit-rps", quota.Second}, {"limit-rpm", quota.Minute}} {
		t := findAnnotation(c.of, rate.name)
		n, ok := t.Int()
		switch {
		case !t.Exists() || ok && n <= 0: // 0 is no limit.
			continue
		case !ok || n > 1<<32 || multiplier > 1<<16:
			c.impossible = rate.name + " or its multiplier is no number that Weir takes"
			continue
		}
		if rate.name == "limit-rpm" && n*1000%60 != 0 {
			c.remarks = append(c.remarks, fmt.Sprintf(
				"nginx rounds %dr/m down to %d thousandths of a request a second", n, n*1000/60))
		}
		p.Limits = append(p.Limits, importer.Limit{Quota: n, Window: rate.window, Burst: n*multiplier + 1})
	}
}

// allowedNetworks returns the networks that are not limited.
func (c *conversion) allowedNetworks() (networks []netip.Prefix) {
	t := findAnnotation(c.of, "limit-whitelist", "limit-allowlist")
	for _, text := range strings.Split(t.Text(), ",") {
		network, ok := importer.ParseNetwork(text)
		if ok {
			networks = append(networks, network)
		} else if strings.TrimSpace(text) != "" {
			c.remarks = append(c.remarks, strconv.Quote(text)+" is no network")
		}
	}
	if c.r.common && hasLimit(c.of) && c.impossible == "" {
		c.r.b.Set.Exempt.ClientIPs = importer.Networks(networks)
	}
	return networks
}

// listMatches returns the hosts and paths of the ingress, in as few matches as possible.
func (c *conversion) listMatches() (matches []importer.Match) {
	// An ingress with only a default backend takes all requests.
	spec := c.of.tree.Get("spec")
	if spec.Get("defaultBackend").Exists() && len(spec.Get("rules").Items()) == 0 {
		return []importer.Match{{}}
	}
	// Make a match for each path of each host.
	var left []string
	for _, rule := range spec.Get("rules").Items() {
		var m importer.Match
		if host := rule.Get("host").Text(); host != "" {
			m.Hosts = []string{strings.ToLower(host)}
		}
		paths := rule.Path("http", "paths").Items()
		if len(paths) == 0 {
			matches = append(matches, m)
		}
		for _, p := range paths {
			one := m
			var problem string
			if one.Paths, problem = c.pathPatterns(p); problem != "" {
				left = append(left, problem)
				continue
			}
			matches = append(matches, one)
		}
	}
	// Report paths that no pattern can express.
	switch {
	case len(matches) > 0:
		for _, problem := range left {
			c.remarks = append(c.remarks, "left out there: "+problem)
		}
	case left != nil:
		c.impossible = importer.Join("; ", left...)
	default:
		c.impossible = "the ingress has no rules"
	}
	return importer.Merge(matches)
}

// pathPatterns returns the patterns for a path of a rule, or the reason why there are none.
func (c *conversion) pathPatterns(t *importer.Tree) (patterns []string, problem string) {
	path := t.Get("path").Or("/")
	kind := t.Get("pathType").Or("ImplementationSpecific")
	if kind == "Exact" {
		return []string{path}, ""
	}
	if findAnnotation(c.of, "use-regex").Is() ||
		findAnnotation(c.of, "rewrite-target").Exists() && strings.ContainsAny(path, "(*[") {
		patterns, remark, ok := importer.RegexPaths(path)
		if !ok {
			return nil, "path " + path + ": no pattern of Weir takes the same paths as this expression"
		}
		if remark != "" {
			c.remarks = append(c.remarks, remark)
		}
		return patterns, ""
	}
	if kind != "Prefix" && !strings.HasSuffix(path, "/") {
		c.remarks = append(c.remarks,
			"path "+path+" also covers "+path+"x in nginx, in Weir only paths below "+path+"/")
	}
	return importer.Prefix(path), ""
}

// noteAnnotations notes each annotation that limits something.
func (c *conversion) noteAnnotations() {
	for _, f := range c.of.tree.Path("metadata", "annotations").Fields() {
		name, found := strings.CutPrefix(f.Name, prefix)
		if !found || !strings.Contains(name, "limit") {
			continue
		}
		what := c.of.String() + ": " + name + ": " + f.Value.Short()
		switch {
		case notLimits[name] != "":
			c.r.b.Not(f.Value, what, notLimits[name])
		case strings.HasPrefix(name, "global-rate-limit"):
			c.r.b.Not(f.Value, what, "current controllers have no such annotation: write a policy with mode: leased")
		case !slices.Contains([]string{"limit-rps", "limit-rpm", "limit-connections", "limit-burst-multiplier",
			"limit-whitelist",
			"limit-allowlist"}, name):
			c.r.b.Not(f.Value, what, "there is no such setting in Weir")
		case c.impossible != "":
			c.r.b.Not(f.Value, what, c.impossible)
		case len(c.remarks) > 0 && !strings.HasPrefix(name, "limit-w") && !strings.HasPrefix(name, "limit-burst"):
			c.r.b.Nearly(f.Value, what, importer.Join("; ", c.remarks...), c.names...)
		default:
			c.r.b.Exactly(f.Value, what, "", c.names...)
		}
	}
}
