package fromenvoy

import (
	"slices"
	"strings"

	"github.com/weir-proxy/weir/controlplane/internal/offline/importer"
)

// atEnvoy returns the policies for the requests of which Envoy makes a descriptor on the way. It
// returns none if Envoy makes none, or if no Envoy configuration is given.
func (s *service) atEnvoy(domain string, way []step, like importer.Policy) (all []importer.Policy, remark string) {
	if !s.native {
		return nil, ""
	}
	// Find the descriptors of each filter that asks the service for this domain.
	var remarks []string
	reason := "no rate_limits of the Envoy configuration make it"
	for _, f := range s.filters {
		if f.kind != "RateLimit" || f.at.Get("domain").Text() != domain {
			continue
		}
		for _, from := range s.sourcesOf(f) {
			if from.at.Get("stage").Or("0") != f.at.Get("stage").Or("0") {
				continue
			}
			for _, d := range descriptorsOf(from.at, from.in) {
				p, is, problem := d.policyAlong(way, like)
				switch {
				case !is:
				case problem != "":
					reason = problem
				default:
					s.used[from.at] = true
					all = append(all, p)
					remarks = append(append(remarks, d.remarks...), unreadFields(from.at)...)
				}
			}
		}
	}
	// Join the policies.
	if len(all) == 0 {
		return nil, reason + ": the policy is for calls to the gRPC rate limit service"
	}
	all = joinPolicies(all)
	if len(all) > 1 {
		remarks = append(remarks,
			"the rate limit service has one counter for them, Weir has one counter for each policy")
	}
	return all, importer.Join("; ", remarks...)
}

// unreadFields says which fields of an element of rate_limits are not read.
func unreadFields(t *importer.Tree) (remarks []string) {
	for _, name := range []string{"limit", "hits_addend", "apply_on_stream_done", "disable_key"} {
		if t.Get(name).Exists() {
			remarks = append(remarks, name+" of rate_limits is not read")
		}
	}
	return remarks
}

// policyAlong returns the policy for the requests of which the actions make a descriptor on the
// way; is reports whether they ever do.
func (d *descriptor) policyAlong(way []step, like importer.Policy) (p importer.Policy, is bool, reason string) {
	p = like
	if len(way) != len(d.entries) {
		return p, false, ""
	}
	reason = d.impossible
	for i, one := range way {
		v := d.entries[i]
		if v.key != one.key {
			return p, false, ""
		}
		same, problem := true, one.impossible
		switch {
		case problem != "":
		case v.part == "":
			same = one.takesText(v.text)
		case one.op == "equals":
			same, problem = d.fixValue(v, one.value)
		default:
			problem = d.varyPart(v, one, &p)
		}
		if !same {
			return p, false, ""
		}
		reason = importer.Join("; ", reason, problem)
	}
	p.Match = d.match
	return p, true, reason
}

// takesText reports whether a step takes a fixed text.
func (s step) takesText(text string) bool {
	for _, e := range s.except {
		if e.Op == "equals" && text == e.Text || e.Op == "prefix" && strings.HasPrefix(text, e.Text) {
			return false
		}
	}
	switch s.op {
	case "equals":
		return text == s.value
	case "prefix":
		return strings.HasPrefix(text, s.text())
	}
	return true
}

// varyPart handles a step that takes several values of a part of the request: the part becomes a
// part of the key.
func (d *descriptor) varyPart(v value, one step, p *importer.Policy) (reason string) {
	if one.op == "prefix" {
		name, isHeader := strings.CutPrefix(v.part, "header:")
		if !isHeader {
			return "Weir has no condition that " + v.part + " begins with " + one.text()
		}
		d.match.Headers = append(slices.Clone(d.match.Headers),
			importer.Header{Name: name, Op: "prefix", Value: one.text()})
	}
	if !one.shared && !slices.Contains(p.Partition, v.part) {
		p.Partition = append(slices.Clone(p.Partition), v.part)
	}
	var except []string
	for _, e := range one.except {
		except = append(except, e.Text)
	}
	if len(except) > 0 {
		d.remarks = append(d.remarks, "Weir counts "+one.key+" "+strings.Join(except, ", ")+
			" here too, since a match has no \"not equal\"")
	}
	if v.remark != "" {
		d.remarks = append(d.remarks, v.remark)
	}
	return ""
}
