// Package promises describes the guarantees of the policies of a set. weir check prints them, and
// the console shows them.
package promises

import (
	"fmt"

	"github.com/weir-proxy/weir/shared/policy"
)

// Promise describes the guarantees of one policy.
type Promise struct {
	Name      string   `json:"name"`
	Mode      string   `json:"mode"`
	Algorithm string   `json:"algorithm"`
	Limits    []Limit  `json:"limits"`
	Bound     string   `json:"bound"`
	Notes     []string `json:"notes"`
}

// Limit is one limit, in the form that people read.
type Limit struct {
	Tier   string `json:"tier,omitempty"`
	Quota  int64  `json:"quota,omitempty"`
	Window string `json:"window,omitempty"`
	// InFlight is the maximum number of requests in flight. A limit that has it has no quota.
	InFlight int64 `json:"in_flight,omitempty"`
	// Least is the minimum of an adaptive limit, 0 if the limit is not adaptive. InFlight is then
	// its maximum.
	Least int64 `json:"least,omitempty"`
	// Burst is the burst of a bucket in tokens, or the number of requests that may wait in a leaky
	// bucket. 0 without a bucket.
	Burst int64 `json:"burst,omitempty"`
	// Own is true if callers bring limits of their own, up to this limit.
	Own bool `json:"own,omitempty"`
}

// String returns the limit in the words of weir check.
func (l Limit) String() string {
	text := fmt.Sprintf("%d per %s", l.Quota, l.Window)
	if l.InFlight > 0 {
		text = fmt.Sprintf("%d in flight", l.InFlight)
	}
	if l.Least > 0 {
		text = fmt.Sprintf("%d to %s", l.Least, text)
	}
	if l.Burst > 0 {
		text += fmt.Sprintf(", burst %d", l.Burst)
	}
	if l.Own {
		text = "at most " + text
	}
	if l.Tier != "" {
		text = l.Tier + " " + text
	}
	return text
}

// Of returns the guarantees of a policy of a set. nodes is the number of Envoys that share its
// limits, and doors the number of replicas that answer RateLimitService or RateLimitQuotaService.
func Of(p policy.Policy, set *policy.Set, nodes, doors int64) Promise {
	notes := append([]string{}, p.OptimisticNotes(nodes, doors)...)
	if note := overspendNote(&p, set, nodes); note != "" {
		notes = append(notes, note)
	}
	if note := openNote(&p, set); note != "" {
		notes = append(notes, note)
	}
	notes = append(notes, methodNotes(&p.Match)...)
	return Promise{
		Name: p.Name, Mode: p.Mode.String(), Algorithm: p.Counting.Algorithm.String(), Bound: p.Bound(set.Tiers),
		Notes: append(notes, p.Notes(nodes)...), Limits: append([]Limit{}, LimitsOf(p, set.Tiers)...),
	}
}

// NotesOf returns notes for operators about a set as a whole.
func NotesOf(set *policy.Set) []string {
	notes := set.Notes()
	for i := range set.Priorities {
		for _, note := range methodNotes(&set.Priorities[i].Match) {
			notes = append(notes, "class "+set.Priorities[i].Name+" "+note)
		}
	}
	return notes
}

// LimitsOf returns the limits of a policy, tier by tier.
func LimitsOf(p policy.Policy, tiers []string) (texts []Limit) {
	add := func(tier string, limits []policy.Limit) {
		for _, l := range limits {
			text := Limit{Tier: tier, Quota: l.Quota, Window: policy.FormatSpan(l.Window), Own: l.Own > 0}
			switch {
			case l.InFlight:
				text = Limit{Tier: tier, InFlight: l.Quota, Least: p.Adaptive.Min}
			case !l.Algorithm.Windowed():
				text.Burst = l.Burst()
			}
			texts = append(texts, text)
		}
	}
	if len(p.Tiers) == 0 {
		add("", p.Named(p.Limits))
	}
	for i := range p.Tiers {
		add(tiers[i], p.Named(p.LimitsOf(i)))
	}
	return texts
}
