// Package explain applies a policy set to one request, without charging it. It reports which
// policies the request meets, which it nearly meets and why not, and the caller that each policy
// sees. The matcher of the filter decides all of it. The matcher is also asked about policies of
// one condition each, so that it decides which condition fails.
package explain

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/weir-proxy/weir/controlplane/internal/serve/calls"
	"github.com/weir-proxy/weir/shared/classify"
	"github.com/weir-proxy/weir/shared/match"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/wire"
)

// Request is the request in question.
type Request struct {
	Method, Host, Path string
	// Headers are all other headers, names in lower case.
	Headers []match.Header
	// ClientIP is the client's address, empty if it is not known.
	ClientIP string
	// Verified has the values that are in no header, by source, like jwt:sub.
	Verified map[string]string
}

// Config is the state that a request is matched against.
type Config struct {
	View   *calls.View
	Secret [16]byte
	// Consumers knows the consumers; nil knows none.
	Consumers match.Consumers
}

// Explanation is the effect of a policy set on a request.
type Explanation struct {
	match.Result
	// Whose is whose request it is to the policies that it meets.
	Whose []match.Whose
	// Caller is the consumer that the request names, whatever policies it meets; nil if it names
	// none.
	Caller *match.Value
	// Exempt is which list of the policy set exempts the request; empty if none does.
	Exempt string
	// Misses are the policies that the request does not meet, in the document's order.
	Misses []Miss
}

// Miss is a policy that a request does not meet.
type Miss struct {
	Policy *policy.Policy
	// Fails are the conditions that fail, in words, in the document's order. Without one the policy
	// is switched off.
	Fails []string
	// Of is the number of conditions. Unaddressed is the number of conditions that fail because the
	// client's address is not given.
	Of, Unaddressed int
}

// properties are the values that are in no header, by path.
type properties map[string]string

// Property implements match.Properties.
func (p properties) Property(path []byte) []byte {
	if value, ok := p[string(path)]; ok {
		return []byte(value)
	}
	return nil
}

// explainer is one question at work.
type explainer struct {
	Config
	request    Request
	headers    []match.Header
	properties properties
	// asking is the matcher of all but the request itself: a result is good until the next.
	matcher, asking match.Matcher
	classifier      classify.Classifier
}

// Of explains a request. The error is about a source in Request.Verified that is none.
func Of(c Config, r Request) (e Explanation, err error) {
	x := explainer{Config: c, request: r, properties: properties{}}
	for name, value := range r.Verified {
		source, err := verifiedSource(name)
		if err != nil {
			return e, err
		}
		x.properties[match.PropertyPath(source)] = value
	}
	for _, pseudo := range [][2]string{{":method", r.Method}, {":path", r.Path}, {":authority", r.Host}} {
		if pseudo[1] != "" {
			x.headers = append(x.headers, match.Header{Name: []byte(pseudo[0]), Value: []byte(pseudo[1])})
		}
	}
	x.headers = append(x.headers, r.Headers...)
	a := x.attributes(&c.View.Index)
	e.Whose = x.matcher.Whose(&c.View.Index, &a)
	e.Result = x.matcher.Match(&c.View.Index, &a)
	if e.Access == match.Exempt {
		e.Exempt, err = x.exemptBy()
	}
	if err == nil {
		e.Misses, err = x.listMisses(e.Whose)
	}
	if err == nil {
		e.Caller, err = x.findCaller()
	}
	return e, err
}

// findCaller asks a policy for all requests that counts by consumer.
func (x *explainer) findCaller() (*match.Value, error) {
	if len(x.View.Set.Identity.Consumer) == 0 {
		return nil, nil
	}
	all, err := plainPolicy()
	if err != nil {
		return nil, err
	}
	all.Name, all.Partition = "c", []policy.Part{{Kind: policy.PartConsumer}}
	set := x.bareSet()
	set.Policies = []policy.Policy{all}
	ix, err := x.loadSet(set)
	if err != nil {
		return nil, err
	}
	a := x.attributes(ix)
	a.Consumers = nil
	if whose := x.asking.Whose(ix, &a); len(whose) == 1 && !whose[0].Values[0].Absent {
		return &whose[0].Values[0], nil
	}
	return nil, nil
}

// plainPolicy returns a policy without conditions.
func plainPolicy() (policy.Policy, error) {
	one, err := policy.NewLimit(policy.Counting{}, 1, quota.Second, 0)
	return policy.Policy{Limits: []policy.Limit{one}, Cost: policy.Cost{Fixed: 1}, Mode: policy.ModeLocal,
		OnFailure: policy.DefaultOnFailure, Enforced: policy.EnforcedAll}, err
}

// verifiedSource reads a source of values that are in no header.
func verifiedSource(text string) (s policy.Source, err error) {
	if s, ok := policy.ParseSource(text); ok && s.Kind.AsksEnvoy() {
		return s, nil
	}
	var all []string
	for k := range policy.SourceKind(policy.SourceCount) {
		if k.AsksEnvoy() {
			all = append(all, k.Written())
		}
	}
	return s, fmt.Errorf("%q is not a source of verified values; use one of %s", text, strings.Join(all, ", "))
}

// attributes returns the request's attributes for an index. The client's address is given directly,
// so hops do not count.
func (x *explainer) attributes(ix *match.Index) match.Attributes {
	rules := classify.RulesOf(ix)
	rules.TrustedHops, rules.NotAppended = 0, true
	a := x.classifier.Of(x.headers, []byte(x.request.ClientIP), rules)
	a.Properties = x.properties
	a.Consumers = x.Consumers
	return a
}

// loadSet compiles a policy set that is made for a question.
func (x *explainer) loadSet(set *policy.Set) (*match.Index, error) {
	ix := new(match.Index)
	return ix, ix.Load(wire.AppendSnapshot(nil, wire.Snapshot{Version: 1, Secret: x.Secret, Set: set}))
}

// exemptBy asks each list of the policy set alone whether it exempts the request. Without one it is
// the consumer's bypass.
func (x *explainer) exemptBy() (string, error) {
	all := x.View.Set.Exempt
	for _, one := range []struct {
		name string
		only policy.Exempt
	}{
		{"exempt.client_ips", policy.Exempt{ClientIPs: all.ClientIPs}},
		{"exempt.methods", policy.Exempt{Methods: all.Methods}},
		{"exempt.paths", policy.Exempt{Paths: all.Paths}},
		{"exempt.consumers", policy.Exempt{Consumers: all.Consumers}},
	} {
		set := x.bareSet()
		set.Exempt = one.only
		ix, err := x.loadSet(set)
		if err != nil {
			return "", err
		}
		a := x.attributes(ix)
		a.Consumers = nil
		if x.asking.Match(ix, &a).Access == match.Exempt {
			return one.name, nil
		}
	}
	return "", nil
}

// bareSet returns the policy set without its policies, bans and exemptions. The settings for
// reading requests stay.
func (x *explainer) bareSet() *policy.Set {
	set := *x.View.Set
	set.Policies, set.Banned, set.Exempt, set.Priorities = nil, nil, policy.Exempt{}, nil
	return &set
}

// Label returns the caller of a request, one text for each part, in the form that weir keys takes.
func Label(p *policy.Policy, values []match.Value) (label []string) {
	for i, part := range p.Partition {
		text := "-"
		if v := values[i]; !v.Absent {
			text = string(v.Text)
			if part.Kind == policy.PartClientIP || v.Source.Kind == policy.SourceClientIP {
				addr, _ := netip.AddrFromSlice(v.Text)
				text = addr.String()
			}
		}
		label = append(label, part.String()+":"+text)
	}
	return label
}
