package explain

import (
	"fmt"
	"slices"
	"strings"

	"github.com/weir-proxy/weir/shared/match"
	"github.com/weir-proxy/weir/shared/policy"
)

// atOnce is the largest number of conditions that are asked about together.
const atOnce = 2000

// condition is one condition of a policy: the policy as it is with that alone, and why it fails.
type condition struct {
	of    int // the index of the Miss
	alone policy.Policy
	fails string
}

// listMisses returns the policies that the request does not meet. It leaves out policies for calls
// of Envoy's own filters: a request has no descriptors.
func (x *explainer) listMisses(met []match.Whose) (all []Miss, err error) {
	bare, err := plainPolicy()
	if err != nil {
		return nil, err
	}
	var asked []condition
	for i := range x.View.Set.Policies {
		p := &x.View.Set.Policies[i]
		is := slices.ContainsFunc(met, func(w match.Whose) bool { return int(w.Policy) == i })
		if p.Match.IsOfCalls() || is && !x.skipsPolicy(p, met, i) {
			continue
		}
		miss := Miss{Policy: p}
		for _, c := range x.conditions(p, bare) {
			c.of = len(all)
			asked = append(asked, c)
			miss.Of++
		}
		all = append(all, miss)
	}
	for some := range slices.Chunk(asked, atOnce) {
		if err := x.askConditions(some, all); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// skipsPolicy reports whether a policy leaves out a request that lacks a part of its key.
func (x *explainer) skipsPolicy(p *policy.Policy, met []match.Whose, number int) bool {
	at := slices.IndexFunc(met, func(w match.Whose) bool { return int(w.Policy) == number })
	return p.IfAbsent == policy.AbsentSkip &&
		slices.ContainsFunc(met[at].Values, func(v match.Value) bool { return v.Absent })
}

// askConditions lets the matcher decide which of the conditions hold, and adds the failed
// conditions to the misses.
func (x *explainer) askConditions(some []condition, all []Miss) error {
	set := x.bareSet()
	for i := range some {
		some[i].alone.Name = fmt.Sprint("c", i)
		set.Policies = append(set.Policies, some[i].alone)
	}
	ix, err := x.loadSet(set)
	if err != nil {
		return err
	}
	a := x.attributes(ix)
	if a.Consumers != nil { // Their bans and bypasses stand before the conditions.
		a.Consumers = tiersOnly{a.Consumers}
	}
	holds := make([]bool, len(some))
	for _, hit := range x.asking.Match(ix, &a).Hits {
		holds[hit.Policy] = true
	}
	for i := range some {
		if miss := &all[some[i].of]; !holds[i] {
			fails := some[i].fails
			if x.request.ClientIP == "" && some[i].isOfAddress() {
				fails = "the client's address is not given"
				miss.Unaddressed++
			}
			miss.Fails = append(miss.Fails, fails)
		}
	}
	return nil
}

// isOfAddress reports whether the condition is one of the client's address, which each request has.
func (c *condition) isOfAddress() bool {
	parts := c.alone.Partition
	return len(c.alone.Match.ClientIPs) > 0 || len(parts) == 1 && parts[0].Kind == policy.PartClientIP
}

// tiersOnly knows of consumers which tier they have, and nothing else.
type tiersOnly struct{ of match.Consumers }

// Exceptions implements match.Consumers.
func (tiersOnly) Exceptions() (some bool, revision uint64) { return false, 0 }

// Find implements match.Consumers.
func (t tiersOnly) Find(c *match.Consumer) {
	t.of.Find(c)
	c.Banned, c.Bypass, c.Exceptions = false, false, nil
}

// conditions returns the conditions of a policy, in the document's order.
func (x *explainer) conditions(p *policy.Policy, plain policy.Policy) (all []condition) {
	add := func(change func(alone *policy.Policy), format string, args ...any) {
		c := condition{alone: plain, fails: fmt.Sprintf(format, args...)}
		change(&c.alone)
		all = append(all, c)
	}
	// The conditions of match.
	m := &p.Match
	if len(m.Hosts) > 0 {
		add(func(alone *policy.Policy) { alone.Match.Hosts = m.Hosts },
			"host is %s, and must be %s", orNone(x.request.Host), anyOf(m.Hosts))
	}
	if len(m.Methods) > 0 {
		add(func(alone *policy.Policy) { alone.Match.Methods = m.Methods },
			"method is %s, and must be %s", orNone(x.request.Method), anyOf(m.Methods))
	}
	if len(m.Paths) > 0 {
		path, _, _ := strings.Cut(x.request.Path, "?")
		add(func(alone *policy.Policy) { alone.Match.Paths = m.Paths },
			"path is %s, and must be %s", orNone(path), anyOf(m.Paths))
	}
	for i := range m.Headers {
		h := &m.Headers[i]
		add(func(alone *policy.Policy) { alone.Match.Headers = m.Headers[i : i+1] },
			"header %s is %s, and must %s", h.Name, x.headerValue(h.Name), wantedWords(h))
	}
	if len(m.ClientIPs) > 0 {
		add(func(alone *policy.Policy) { alone.Match.ClientIPs = m.ClientIPs },
			"the client's address is %s, which is in none of match.client_ips", orNone(x.request.ClientIP))
	}
	if len(m.Tiers) > 0 {
		var names []string
		for _, at := range m.Tiers {
			names = append(names, x.View.Set.Tiers[at])
		}
		add(func(alone *policy.Policy) { alone.Match.Tiers = m.Tiers }, "the caller's tier must be %s", anyOf(names))
	}
	// The request must have the parts by which the policy counts.
	if p.IfAbsent == policy.AbsentSkip {
		for i, part := range p.Partition {
			add(func(alone *policy.Policy) { alone.Partition = p.Partition[i : i+1] },
				"it has no %s, by which the policy counts, and if_absent is skip", part)
		}
	}
	// The caller's tier must have a limit.
	if len(p.Tiers) > 0 {
		add(func(alone *policy.Policy) { alone.Tiers, alone.Limits, alone.Counting = p.Tiers, p.Limits, p.Counting },
			"callers of its tier are unlimited under it")
	}
	return all
}

// headerValue returns the request's value of a header, for people.
func (x *explainer) headerValue(name string) string {
	var values []string
	for _, h := range x.request.Headers {
		if h.Is(name) {
			values = append(values, string(h.Value))
		}
	}
	if len(values) == 0 {
		return "absent"
	}
	return fmt.Sprintf("%q", strings.Join(values, ","))
}

// wantedWords returns the words for a header condition, like: be absent.
func wantedWords(h *policy.HeaderMatch) string {
	switch h.Op {
	case policy.HeaderAbsent:
		return "be absent"
	case policy.HeaderPresent:
		return "be there"
	case policy.HeaderPrefix:
		return fmt.Sprintf("begin with %q", h.Value)
	}
	return fmt.Sprintf("be %q", h.Value)
}

// anyOf lists some alternatives.
func anyOf(all []string) string {
	const most = 5
	if len(all) > most {
		return strings.Join(all[:most], ", ") + fmt.Sprintf(" or one of %d other values", len(all)-most)
	}
	if last := len(all) - 1; last > 0 {
		return strings.Join(all[:last], ", ") + " or " + all[last]
	}
	return all[0]
}

func orNone(text string) string {
	if text == "" {
		return "not given"
	}
	return text
}
