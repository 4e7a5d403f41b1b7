package promises

import (
	"fmt"
	"reflect"
	"slices"

	"github.com/weir-proxy/weir/shared/policy"
)

// overspendNote says how far a policy can exceed its bound because costs are known only after the
// response: each request under way can cost more than it has reserved. The note has a number if the
// greatest cost and the number of requests under way are known. It is empty if costs are known
// before the response.
func overspendNote(p *policy.Policy, set *policy.Set, nodes int64) string {
	if p.Commit.By == policy.CommitNever {
		return ""
	}
	greatest, known := greatestCost(&p.Commit)
	reserved, least := "its reservation", int64(1)
	if p.Cost.Source.Name == "" {
		least = p.Cost.Fixed
		reserved = fmt.Sprint(least)
	}
	beside, flights := flightsBeside(p, set, nodes)
	under := fmt.Sprintf("at most %d requests are under way at once by %s", flights, beside)
	switch {
	case known && least >= greatest:
		return fmt.Sprintf("nothing beyond that: a request costs at most %d, and reserves no less", greatest)
	case known && beside != "":
		return fmt.Sprintf("beyond that at most %d x (%d - %d) = %d: %s, and each costs at most %d and "+
			"reserves %d or more", flights, greatest, least, flights*(greatest-least), under, greatest, least)
	case known:
		return fmt.Sprintf("beyond that at most %d for each request under way at once: it costs at most %d and "+
			"reserves %d or more; a limit in_flight beside it bounds how many there are",
			greatest-least, greatest, least)
	case beside != "":
		return fmt.Sprintf("beyond that at most %d x (c - r): %s, c is the most that a request costs, and r is %s; "+
			"nothing where r is as much as c", flights, under, reserved)
	}
	return "beyond that at most n x (c - r): n requests are under way at once, c is the most that a request costs, " +
		"and r is " + reserved + "; nothing where r is as much as c"
}

// greatestCost returns the greatest cost that a response can report. It is known only if costs
// depend on the status, because then the policy lists them.
func greatestCost(c *policy.Commit) (most int64, known bool) {
	most = max(c.Missing, 0)
	for _, one := range c.Statuses {
		most = max(most, one.Cost)
	}
	return most, c.By == policy.CommitStatus || c.By == policy.CommitGRPCStatus
}

// flightsBeside finds the policy that limits most tightly how many requests of a partition key are
// under way at once. It returns a description of the policy and that number. The policy must count
// all requests of p, by the same partition or by fewer parts of it. beside is empty if there is no
// such policy.
func flightsBeside(p *policy.Policy, set *policy.Set, nodes int64) (beside string, flights int64) {
	for i := range set.Policies {
		q := &set.Policies[i]
		if q.Enforced != policy.EnforcedAll || !countsAllOf(q, p) {
			continue
		}
		most, hold, bounded := maxInFlight(q)
		if q.Mode == policy.ModeLocal && p.Mode != policy.ModeLocal {
			most *= nodes // Each Envoy allows this many.
		}
		if bounded && (beside == "" || most < flights) {
			beside, flights = "the policy "+q.Name, most
			if hold != "" {
				beside += ", which counts a request for " + hold
			}
		}
	}
	return beside, flights
}

// countsAllOf reports whether q counts all requests of a partition key of p in one bucket.
func countsAllOf(q, p *policy.Policy) bool {
	if !reflect.DeepEqual(q.Match, policy.Match{}) && !reflect.DeepEqual(q.Match, p.Match) {
		return false
	}
	if len(q.Partition) > 0 && q.IfAbsent != p.IfAbsent {
		return false
	}
	return !slices.ContainsFunc(q.Partition, func(part policy.Part) bool { return !slices.Contains(p.Partition, part) })
}

// maxInFlight returns the highest limit in flight of any tier, and for how long a request counts at
// most (empty: until it ends). bounded is false if a tier has no such limit or the limit is
// adaptive.
func maxInFlight(q *policy.Policy) (most int64, hold string, bounded bool) {
	lists := [][]policy.Limit{q.Limits}
	if len(q.Tiers) > 0 {
		lists = nil
		for i := range q.Tiers {
			lists = append(lists, q.LimitsOf(i))
		}
	}
	for _, limits := range lists {
		of := int64(0)
		for _, l := range q.Named(limits) {
			if l.InFlight {
				of = l.Quota
				if l.Window > 0 {
					hold = policy.FormatSpan(l.Window)
				}
			}
		}
		if of == 0 || q.Adaptive.Max > 0 {
			return 0, "", false
		}
		most = max(most, of)
	}
	return most, hold, true
}
