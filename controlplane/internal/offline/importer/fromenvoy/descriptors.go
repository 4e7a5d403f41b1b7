package fromenvoy

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/weir-proxy/weir/controlplane/internal/offline/importer"
	"github.com/weir-proxy/weir/shared/quota"
)

// readDuration reads 1s, 0.25s or {seconds: 1, nanos: 5}, to the microsecond.
func readDuration(t *importer.Tree) (quota.Span, bool) {
	if t.IsMap() {
		seconds, _ := t.Get("seconds").Int()
		nanos, _ := t.Get("nanos").Int()
		span := quota.Span(seconds)*quota.Second + quota.Span(nanos/1000)
		return span, seconds >= 0 && seconds < 1<<31 && nanos >= 0 && nanos < 1e9 && span > 0
	}
	text, found := strings.CutSuffix(t.Text(), "s")
	if !found {
		return 0, false
	}
	whole, fraction, _ := strings.Cut(text, ".")
	n, err := strconv.ParseInt(whole, 10, 32)
	micros, err2 := strconv.ParseInt((fraction + "000000")[:6], 10, 64)
	span := quota.Span(n)*quota.Second + quota.Span(micros)
	return span, err == nil && err2 == nil && n >= 0 && micros >= 0 && span > 0
}

// source is an element of rate_limits and the scope that it is for.
type source struct {
	at *importer.Tree
	in *scope
}

// sourcesOf returns the elements of rate_limits in force for the requests of a filter: the filter's
// own elements, else the elements of routes, else the elements of virtual hosts.
func (r *reader) sourcesOf(f filter) (all []source) {
	if own := f.at.Get("rate_limits").Items(); len(own) > 0 {
		for _, t := range own {
			all = append(all, source{t, f.scope})
		}
		return all
	}
	split := map[*scope]bool{} // Virtual hosts of which some routes have their own.
	for _, s := range r.scopes {
		if s.kind == "route" && len(s.limits) > 0 {
			split[s.vhost] = true
		}
	}
	for _, s := range r.scopes {
		limits := s.limits
		switch {
		case f.scope.kind == "route" && s != f.scope, f.scope.kind == "virtual host" && s != f.scope &&
			s.vhost != f.scope:
			continue
		case s.kind == "virtual host" && split[s]:
			continue
		case s.kind == "route" && s != f.scope && !split[s.vhost]:
			continue
		case s.kind == "route" && len(limits) == 0:
			limits = s.vhost.limits
		}
		for _, t := range limits {
			all = append(all, source{t, s})
		}
	}
	return all
}

// addDescriptor makes the policies of a descriptor with a bucket of its own.
func (c *conversion) addDescriptor(t *importer.Tree) {
	// Name the descriptor, and read its limit.
	entries := t.Get("entries").Items()
	var texts []string
	for _, e := range entries {
		texts = append(texts, e.Get("key").Text()+"="+e.Get("value").Or("*"))
	}
	what := "descriptor " + strings.Join(texts, ", ")
	limit, reason := limitOf(t.Get("token_bucket"))
	for _, f := range t.Unread() {
		reason = importer.Join("; ", reason, "the field "+f.Name+" is not read")
	}
	if c.impossible != "" || reason != "" {
		c.noteVerdict(t, what, "", reason)
		return
	}
	// Find the requests, and note the differences.
	policies, remarks, reason := c.policiesOf(t, entries)
	if len(policies) == 0 {
		c.noteVerdict(t, what, "",
			importer.Join("; ", "no rate_limits of the files make it for these requests", reason))
		return
	}
	if len(policies) > 1 {
		remarks = append(remarks, "Envoy has one bucket for it, Weir has one bucket for each policy")
	}
	if other := c.findNarrower(t); other != "" {
		remarks = append(remarks, "Weir counts requests of descriptor "+other+" here too, Envoy does not")
	}
	if reason != "" {
		remarks = append(remarks, "other rate_limits make it too and are left out: "+reason)
	}
	// Add the policies.
	var names []string
	for _, p := range policies {
		p.Limits = []importer.Limit{limit}
		p.Name = importer.Join("-", append([]string{c.policy.Name}, texts...)...)
		p.From = []string{fmt.Sprintf("%s:%d: %s", t.File(), t.Line(), what)}
		name, refused := c.r.b.Add(p)
		if refused != "" {
			c.noteVerdict(t, what, "", refused)
			return
		}
		names = append(names, name)
	}
	c.noteVerdict(t, what, importer.Join("; ", append(remarks, c.remarks...)...), "", names...)
}

// findNarrower returns a descriptor with a value where the given descriptor takes any value: Envoy
// prefers it.
func (c *conversion) findNarrower(t *importer.Tree) string {
	entries := t.Get("entries").Items()
	for _, other := range c.of.at.Get("descriptors").Items() {
		theirs := other.Get("entries").Items()
		narrower := len(theirs) == len(entries)
		var texts []string
		differ := false
		for i := range min(len(theirs), len(entries)) {
			mine, value := entries[i].Get("value").Text(), theirs[i].Get("value").Text()
			narrower = narrower && entries[i].Get("key").Text() == theirs[i].Get("key").Text() &&
				(mine == value || mine == "")
			differ = differ || mine != value
			texts = append(texts, theirs[i].Get("key").Text()+"="+theirs[i].Get("value").Or("*"))
		}
		if narrower && differ {
			return strings.Join(texts, ", ")
		}
	}
	return ""
}

// policiesOf returns the policies of a descriptor. Each list of actions that makes it adds the
// requests and the parts of the key.
func (c *conversion) policiesOf(t *importer.Tree, entries []*importer.Tree) (
	policies []importer.Policy, remarks []string, reasons string,
) {
	for _, s := range c.r.sourcesOf(c.of) {
		if s.at.Get("stage").Or("0") != c.of.at.Get("stage").Or("0") {
			continue
		}
		for _, d := range descriptorsOf(s.at, s.in) {
			p, is, reason := d.policyOf(entries, c.policy)
			if !is {
				continue
			}
			c.r.used[s.at] = true
			if reason != "" {
				reasons = importer.Join("; ", reasons, reason)
				continue
			}
			remarks = append(remarks, d.remarks...)
			policies = append(policies, p)
		}
	}
	return joinPolicies(policies), remarks, reasons
}

// policyOf returns a policy for the requests of which the actions make a descriptor; is reports
// whether they ever do.
func (d *descriptor) policyOf(
	entries []*importer.Tree, like importer.Policy,
) (p importer.Policy, is bool, reason string) {
	if len(entries) != len(d.entries) {
		return p, false, ""
	}
	p = like
	reason = d.impossible
	for i, e := range entries {
		v := d.entries[i]
		if v.key != e.Get("key").Text() {
			return p, false, ""
		}
		text := e.Get("value").Text()
		if text == "" { // Each value has a bucket.
			if v.part != "" && !slices.Contains(p.Partition, v.part) {
				p.Partition = append(slices.Clone(p.Partition), v.part)
			}
			if v.remark != "" {
				d.remarks = append(d.remarks, v.remark)
			}
			continue
		}
		same, problem := d.fixValue(v, text)
		if !same {
			return p, false, ""
		}
		reason = importer.Join("; ", reason, problem)
	}
	p.Match = d.match
	return p, true, reason
}

// joinPolicies returns policies with as few matches as possible.
func joinPolicies(policies []importer.Policy) (all []importer.Policy) {
	for len(policies) > 0 {
		first := policies[0]
		var matches []importer.Match
		policies = slices.DeleteFunc(policies, func(p importer.Policy) bool {
			same := slices.Equal(p.Partition, first.Partition)
			if same {
				matches = append(matches, p.Match)
			}
			return same
		})
		for _, m := range importer.Merge(matches) {
			first.Match = m
			all = append(all, first)
		}
	}
	return all
}

// noteUnused notes the elements of rate_limits that no descriptor uses.
func (r *reader) noteUnused() {
	seen := map[*importer.Tree]bool{}
	note := func(t *importer.Tree) {
		if seen[t] {
			return
		}
		seen[t] = true
		what := "rate_limits: " + t.Get("actions").Short()
		if r.used[t] {
			r.b.Exactly(t, what, "")
			return
		}
		r.b.Not(t, what, "no descriptor of a local_ratelimit has it; if it is for a rate limit service, import the "+
			"configuration of that service with this file as --envoy")
	}
	for _, s := range r.scopes {
		for _, t := range s.limits {
			note(t)
		}
	}
	for _, f := range r.filters {
		for _, t := range f.at.Get("rate_limits").Items() {
			note(t)
		}
	}
}
