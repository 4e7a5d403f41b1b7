package policy

import (
	"strconv"
	"strings"

	"github.com/weir-proxy/weir/shared/lease"
	"github.com/weir-proxy/weir/shared/quota"
)

// Bound returns a sentence for operators: the most that the policy lets through. tiers are the
// names of Set.Tiers.
func (p Policy) Bound(tiers []string) string {
	if p.Adaptive.Max > 0 {
		return p.adaptiveBound()
	}
	where := " over all Envoys"
	if p.Mode == ModeLocal {
		where = " on each Envoy"
	}
	if len(quotaLimits(p.Limits)) > 0 && !p.Counting.Algorithm.Windowed() {
		where += ", in every interval"
	}
	if len(p.Partition) > 0 {
		where = " for each partition key" + where
	}
	if len(p.Tiers) == 0 {
		return boundsText(p.Named(p.Limits)) + where
	}
	var said []string
	for i := range p.Tiers {
		most := "unlimited"
		if limits := p.Named(p.LimitsOf(i)); len(limits) > 0 {
			most = boundsText(limits)
		}
		said = append(said, tiers[i]+": "+most)
	}
	return strings.Join(said, "; ") + ";" + where
}

// boundsText returns the most that a list of limits lets through together.
func boundsText(limits []Limit) string {
	said := make([]string, len(limits))
	for i, l := range limits {
		said[i] = l.boundText()
	}
	return strings.Join(said, ", and ")
}

func (l Limit) boundText() string {
	if l.InFlight {
		return l.inFlightBound()
	}
	if l.Suspended() {
		return "nothing: every request is refused as suspended"
	}
	units, window := inDigits(l.Quota), FormatSpan(l.Window)
	switch l.Algorithm {
	case quota.LeakyBucket:
		return units + " per " + window + " one after the other, and up to " + inDigits(l.Burst()) +
			" that wait for at most " +
			FormatSpan(l.MaxWait)
	case quota.FixedWindow:
		return "at most " + units + " in each window of " + window + ", so up to " + inDigits(2*l.Quota) +
			" in a short time across two of them"
	case quota.SlidingWindowCounter:
		return "at most " + units + " in any " + window + " by an estimate, really at most " + inDigits(2*l.Quota-1)
	case quota.SlidingWindow, quota.SlidingLog:
		return "at most " + units + " in any " + window
	}
	return "at most " + inDigits(l.Params.Burst) + " at once + " + units + " per " + window
}

// OptimisticNotes returns by how much an optimistic policy can exceed its bounds, and which
// requests wait, if nodes Envoys and doors of other protocols share its limits. It is empty for
// other modes.
func (p Policy) OptimisticNotes(nodes, doors int64) (notes []string) {
	if p.Mode != ModeOptimistic {
		return nil
	}
	// The limits of all tiers that the document names.
	named := p.Named(p.Limits)
	if len(p.Tiers) > 0 {
		named = nil
		for i := range p.Tiers {
			named = append(named, p.Named(p.LimitsOf(i))...)
		}
	}
	// For each limit, the excess and the requests that wait.
	of, all := inDigits(nodes)+" Envoys", nodes+doors
	if doors > 0 {
		of += " and " + inDigits(doors) + " doors"
	}
	for _, l := range quotaLimits(named) {
		note := "beyond " + l.boundText() + ": with " + of + " up to " + inDigits(lease.Overshoot(l.Params, all)) +
			" more, which are paid back"
		if doors == 0 {
			note += "; with a door beside them (--rls-listen, --rlqs-listen) up to " +
				inDigits(lease.Overshoot(l.Params, all+1))
		}
		notes = append(notes, note)
		if all > 1 {
			notes = append(notes, "with "+of+" a request waits for the control plane, as in strict, if it goes "+
				"beyond "+inDigits(lease.Slack(l.Params, all))+" tokens that its Envoy has not reported")
		}
	}
	if len(p.Reserve) > 0 {
		notes = append(notes, "the control plane decides the classes after the first, as in strict")
	}
	return notes
}

// Notes returns other notes for operators about the policy if nodes Envoys share its limits.
func (p Policy) Notes(nodes int64) []string {
	// How far it is enforced.
	var notes []string
	if p.Match.IsOfCalls() {
		notes = append(notes, "for calls to the gRPC rate limit service alone: the filter in Envoy leaves it out")
	}
	switch {
	case p.Enforced == EnforcedOff:
		notes = append(notes, "switched off")
	case p.Enforced == EnforcedShadow:
		notes = append(notes, "in shadow: decided as if enforced and counted, in the background; no request is touched")
	case p.Enforced < EnforcedAll:
		notes = append(notes, "enforced for "+strconv.Itoa(int(p.Enforced))+
			" % of the partition keys, the others in shadow")
	}
	// The candidate, and the notes on each part of the policy.
	if len(p.Candidate) > 0 {
		notes = append(notes, "watched beside it, in shadow: "+boundsText(p.Named(p.Candidate)))
	}
	notes = append(append(notes, p.reserveNotes()...), p.figureNotes()...)
	notes = append(append(notes, p.inFlightNotes(nodes)...), p.adaptiveNotes()...)
	notes = append(append(notes, p.penaltyNotes(nodes)...), p.commitNotes()...)
	// Leased tokens.
	for _, l := range quotaLimits(p.Limits) {
		if p.leasesAhead() && lease.TTL(l.Params) == 0 {
			notes = append(notes, "its bucket refills within a second, so nothing is leased: every request asks the "+
				"control plane, as in strict")
			break
		}
	}
	if p.leasesAhead() && p.Counting.Algorithm.Windowed() && len(quotaLimits(p.Limits)) > 0 {
		var late quota.Span
		for _, l := range quotaLimits(p.Limits) {
			late = max(late, lease.TTL(l.Params))
		}
		notes = append(notes, "tokens leased to an Envoy count until their lease ends and a window longer, so room "+
			"can come back up to "+FormatSpan(late)+" late")
	}
	// The failure ladder.
	if p.Mode != ModeLocal {
		notes = append(notes, "without the control plane: "+p.OnFailure.String())
		for _, step := range p.OnFailure {
			if step.Do == StepShare && !step.Empty && len(quotaLimits(p.Limits)) > 0 {
				notes = append(notes, "the shares of all Envoys together admit at most one more burst, once for "+
					"an outage")
				break
			}
		}
	}
	return notes
}

// leasesAhead reports whether nodes get tokens before requests need them.
func (p *Policy) leasesAhead() bool { return p.Mode == ModeLeased && p.Commit.By == CommitNever }

// figureNotes returns the places of requests' own figures.
func (p Policy) figureNotes() (notes []string) {
	note := func(what string, f Figure, most int64) {
		if f.Source.Kind != 0 {
			notes = append(notes, "the "+what+" is the caller's own by "+f.String()+", up to "+inDigits(most)+", else "+
				inDigits(f.Default))
		}
	}
	noted := 0 // A tier that is not named has figures that were noted before.
	for _, limits := range [][]Limit{p.Limits, p.Candidate} {
		for _, l := range limits {
			if int(l.Own) <= noted {
				continue
			}
			noted = int(l.Own)
			note("quota", p.Figures[noted-1].Quota, l.Quota)
			note("burst", p.Figures[noted-1].Burst, l.Params.Burst)
		}
	}
	return notes
}

// inDigits formats a number with groups of digits.
func inDigits(n int64) string {
	text := strconv.FormatInt(n, 10)
	for i := len(text) - 3; i > 0; i -= 3 {
		text = text[:i] + " " + text[i:]
	}
	return text
}
