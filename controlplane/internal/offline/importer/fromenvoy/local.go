// Package fromenvoy reads the configuration of Envoy's own limiters: the filter local_ratelimit,
// and the rate limit service of envoyproxy/ratelimit with the actions that fill its descriptors.
//
// A filter may have a configuration in the filter chain, at a virtual host and at a route. Only the
// most specific configuration counts. In Weir each policy applies to all requests that it matches.
package fromenvoy

import (
	"fmt"
	"net/http"
	"strings"

	"github.com/weir-proxy/weir/controlplane/internal/offline/importer"
)

const localLimit = "LocalRateLimit"

// Import reads Envoy configurations: bootstraps, resources, dumps of the admin interface. The error
// is an *importer.SyntaxError.
func Import(files []importer.File) (*importer.Result, error) {
	documents, source, err := importer.Documents(files)
	if err != nil {
		return nil, err
	}
	r := &reader{used: map[*importer.Tree]bool{}}
	for _, doc := range documents {
		r.walkValue(doc, &scope{}, false)
	}
	r.b.Set.Source = source
	r.noteOwnLimits()
	for _, f := range r.filters {
		if f.kind == localLimit {
			r.readLocal(f)
			continue
		}
		r.b.Not(f.at, f.kind+" of "+f.scope.String(), others[f.kind])
	}
	r.noteUnused()
	return r.b.Result()
}

// noteOwnLimits notes which limits each scope has of its own.
func (r *reader) noteOwnLimits() {
	for _, f := range r.filters {
		if f.kind == localLimit {
			f.scope.config = f.at
		}
	}
}

type reader struct {
	walker
	b importer.Builder
	// used are the elements of rate_limits that a descriptor has used.
	used map[*importer.Tree]bool
}

// conversion turns a configuration of local_ratelimit into policies.
type conversion struct {
	r      *reader
	of     filter
	policy importer.Policy
	// remarks are the differences; impossible is the reason why nothing can be carried over.
	remarks    []string
	impossible string
}

func (r *reader) readLocal(f filter) {
	c := conversion{r: r, of: f, impossible: f.scope.impossible}
	c.remarks = append(c.remarks, f.scope.remarks...)
	c.remarks = append(c.remarks, r.remarksOnOthers(f)...)
	c.policy.Name = importer.Join("-", "envoy", f.at.Get("stat_prefix").Text(), f.scope.name)
	c.policy.Mode, c.policy.Match = "local", f.scope.match
	if f.at.Get("local_cluster_rate_limit").Exists() {
		c.policy.Mode = "leased"
	}
	if status := statusOf(f.at.Get("status")); status != 429 {
		c.policy.Response.Status = status
	}
	if f.at.Get("local_rate_limit_per_downstream_connection").Is() {
		c.impossible = importer.Join("; ", c.impossible,
			"Weir has no buckets for single connections: use client_ip or consumer")
	}
	c.readShares()
	c.addBucket()
	for _, d := range f.at.Get("descriptors").Items() {
		c.addDescriptor(d)
	}
	c.noteFields()
}

// statusOf returns the status of a refusal. The source has a number, or a name of Envoy's
// interface. It returns 0 for a status that Weir cannot have.
func statusOf(t *importer.Tree) int64 {
	code := t.Get("code")
	for status := 400; status < 600; status++ {
		name := strings.ReplaceAll(http.StatusText(status), " ", "")
		if name != "" && strings.EqualFold(name, code.Text()) {
			return int64(status)
		}
	}
	if status, ok := code.Int(); ok && status >= 400 && status < 600 {
		return status
	}
	return 0
}

// remarksOnOthers returns remarks about other scopes that take requests from the scope of a filter.
func (r *reader) remarksOnOthers(f filter) (remarks []string) {
	// Several filter chains.
	chains := 0
	for _, other := range r.filters {
		if other.kind == localLimit && other.scope.kind == "" && other.chain && other.at.Get("token_bucket").Exists() {
			chains++
		}
	}
	if f.scope.kind == "" && chains > 1 {
		remarks = append(remarks, "there are several filter chains, and a policy is in force in each that has "+
			"Weir's filter")
	}
	// Several configurations of one scope.
	same := 0
	for _, other := range r.filters {
		if other.kind == localLimit && other.scope == f.scope && f.scope.kind != "" {
			same++
		}
	}
	if same > 1 {
		remarks = append(remarks, "Envoy has one of several configurations here by the cluster, Weir counts in all")
	}
	// Scopes inside this scope, and earlier routes for the same requests.
	for _, s := range r.scopes {
		inside := s != f.scope && (f.scope.kind == "" || s.vhost == f.scope)
		earlier := f.scope.kind == "route" && s.vhost == f.scope.vhost && s.order < f.scope.order &&
			s.kind == "route" &&
			importer.Overlap(s.match, f.scope.match)
		if inside && s.config != nil || earlier {
			remarks = append(remarks, "Weir counts requests of "+s.String()+" here too, Envoy does not")
		}
	}
	return remarks
}

// noteVerdict notes the verdict on an item of the configuration. If the configuration as a whole is
// not possible, no item of it is.
func (c *conversion) noteVerdict(t *importer.Tree, what, remark, impossible string, names ...string) {
	what = "local_ratelimit of " + c.of.scope.String() + ": " + what
	impossible = importer.Join("; ", c.impossible, impossible)
	switch {
	case impossible != "":
		c.r.b.Not(t, what, impossible)
	case remark != "":
		c.r.b.Nearly(t, what, remark, names...)
	default:
		c.r.b.Exactly(t, what, "", names...)
	}
}

// readShares reads the two shares. Without them Envoy decides nothing.
func (c *conversion) readShares() {
	enabled, enforced := wholePercent(c.of.at.Get("filter_enabled")), wholePercent(c.of.at.Get("filter_enforced"))
	switch {
	case enabled == 0 || c.of.disabled:
		c.policy.Enforcement = "off"
	case enforced == 0:
		c.policy.Enforcement = "shadow"
	case enabled*enforced < 1_0000:
		c.policy.Enforcement = importer.Share(max(1, enabled*enforced/100))
		c.remarks = append(c.remarks, "Envoy draws its share among requests, Weir among partition keys")
	}
}

// wholePercent returns a RuntimeFractionalPercent in whole percent, at least 1 if it is not 0. If
// it is absent, the result is 0.
func wholePercent(t *importer.Tree) int64 {
	value := t.Get("default_value")
	n, ok := value.Get("numerator").Int()
	of := map[string]int64{"TEN_THOUSAND": 10_000, "MILLION": 1_000_000}[value.Get("denominator").Text()]
	if of == 0 {
		of = 100
	}
	if !ok || n <= 0 {
		return 0
	}
	n = min(n, of)
	return max(1, n*100/of)
}

// limitOf returns a token bucket, or the reason why Weir cannot have it.
func limitOf(t *importer.Tree) (l importer.Limit, reason string) {
	most, ok := t.Get("max_tokens").Int()
	if !ok || most < 1 || most > 1<<32 {
		return l, "max_tokens is no number"
	}
	fill := int64(1)
	if given := t.Get("tokens_per_fill"); given.Exists() {
		fill, ok = given.Int()
	}
	interval, fine := readDuration(t.Get("fill_interval"))
	if !ok || fill < 1 || fill > 1<<32 || !fine {
		return l, "tokens_per_fill or fill_interval is not read"
	}
	l = importer.Rate(fill, interval)
	l.Burst = most
	return l, ""
}

// addBucket makes the policy of the bucket that all requests share.
func (c *conversion) addBucket() {
	t := c.of.at.Get("token_bucket")
	if !t.Exists() {
		return
	}
	what := "token_bucket: " + t.Short()
	limit, reason := limitOf(t)
	remarks := importer.Join("; ", c.remarks...)
	if always := c.of.at.Get("always_consume_default_token_bucket"); always.Exists() && !always.Is() {
		if len(c.of.at.Get("descriptors").Items()) > 0 {
			remarks = importer.Join("; ", remarks,
				"Envoy takes from it only for requests without a descriptor, Weir for all")
		}
	}
	if c.impossible != "" || reason != "" {
		c.noteVerdict(t, what, "", reason)
		return
	}
	p := c.policy
	p.Limits = []importer.Limit{limit}
	p.From = []string{fmt.Sprintf("%s:%d: local_ratelimit of %s", t.File(), t.Line(), c.of.scope)}
	name, refused := c.r.b.Add(p)
	c.noteVerdict(t, what, remarks, refused, name)
}

// noteFields notes each field.
func (c *conversion) noteFields() {
	t := c.of.at
	if !t.Get("token_bucket").Exists() && len(t.Get("descriptors").Items()) == 0 {
		c.r.b.Exactly(t, "local_ratelimit of "+c.of.scope.String(), "it has no bucket here, and limits nothing")
	}
	for _, f := range t.Fields() {
		remark, impossible := c.judgeField(f.Name, f.Value)
		switch f.Name {
		case "@type", "token_bucket", "descriptors", "rate_limits":
			continue
		}
		c.noteVerdict(f.Value, f.String(), remark, impossible)
	}
}

// judgeField returns the difference of a field, or the reason why it is left out.
func (c *conversion) judgeField(name string, t *importer.Tree) (remark, impossible string) {
	// The first fields concern no limit, or are read elsewhere.
	switch name {
	case "stat_prefix", "rate_limited_as_resource_exhausted", "max_dynamic_descriptors", "stage",
		"always_consume_default_token_bucket", "local_rate_limit_per_downstream_connection":
		return "", ""
	case "status":
		if statusOf(t) == 0 {
			return "Weir answers 429", ""
		}
		return "", ""
	case "filter_enabled", "filter_enforced":
		if key := t.Get("runtime_key").Text(); key != "" {
			return "Envoy's runtime may say another share (" + key + "), Weir has the share of the file; " +
				"weir enforcement changes it at once", ""
		}
		return "", ""
	case "enable_x_ratelimit_headers":
		if t.Text() == "DRAFT_VERSION_03" || t.Text() == "1" {
			c.r.b.Set.Headers.Legacy = "envoy"
			return "headers.legacy: envoy also names the policies, as Envoy's global limiter does", ""
		}
		return "", ""
	case "local_cluster_rate_limit":
		return "Envoy divides by the number of Envoys, Weir leases parts to the Envoys that have the requests", ""
	case "vh_rate_limits":
		if t.Text() == "INCLUDE" || t.Text() == "2" {
			return "the import takes the rate_limits of a route in place of its virtual host's", ""
		}
		return "", ""
	case "response_headers_to_add", "request_headers_to_add_when_not_enforced":
		return "", "Weir adds no headers of your own; the decision is in the filter state weir.decision"
	}
	return "", "there is no such setting in Weir"
}
