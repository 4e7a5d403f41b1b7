package policy

import (
	"strconv"

	"github.com/weir-proxy/weir/shared/inflight"
	"github.com/weir-proxy/weir/shared/quota"
)

const (
	// DefaultMaxHold is the longest time that a request counts as in flight, if its policy does not
	// say.
	DefaultMaxHold = 10 * quota.Minute
	// MaxInFlight is the largest limit of requests in flight.
	MaxInFlight = 1_000_000
)

// NewInFlight makes a limit of requests in flight. A request counts for at most hold (0: for as
// long as it lasts), and waits for a place for at most wait. For code that only knows rates, Params
// are a bucket of most tokens.
func NewInFlight(most int64, hold, wait quota.Span) (Limit, error) {
	params, err := quota.NewParams(most, quota.Second, most)
	c := Counting{InFlight: true, MaxWait: wait}
	return Limit{Counting: c, Quota: most, Window: hold, Params: params}, err
}

// AsInFlight returns the limit of requests in flight that a snapshot writes as a quota.
func (l Limit) AsInFlight(hold quota.Span) Limit {
	most := min(l.Quota, MaxInFlight)
	l.Params.Burst = most
	return Limit{Counting: Counting{InFlight: true, MaxWait: l.MaxWait}, Quota: most, Window: hold, Params: l.Params}
}

// InFlight reports whether the policy, or its candidate, limits requests in flight, and whether it
// has other limits too.
func (p *Policy) InFlight() (some, others bool) {
	for _, limits := range [][]Limit{p.Limits, p.Candidate} {
		for _, l := range limits {
			some, others = some || l.InFlight, others || !l.InFlight
		}
	}
	return some, others
}

// readInFlight reads the number of a limit of requests in flight.
func (r *reader) readInFlight(path string, n Node, c Counting) (Limit, bool) {
	var most int64
	if containsText(n.Keys, "quota") || containsText(n.Keys, "window") || containsText(n.Keys, "burst") {
		r.failAt(path, "has in_flight and other fields: requests in flight have no quota, window or burst; "+
			"write the two as items of a list")
		return Limit{}, false
	}
	at, item, _ := r.findKey(path, n, "in_flight")
	if item.Kind == Map {
		r.failAt(at, "must be a whole number: only quota and burst can take figures from requests")
		return Limit{}, false
	}
	if !r.readInteger(at, item, 1, MaxInFlight, &most) {
		return Limit{}, false
	}
	l, err := NewInFlight(most, r.draft.maxHold, c.MaxWait)
	if err != nil {
		r.failAt(at, err.Error())
	}
	return l, err == nil
}

// readHold reads the longest time that a request counts as in flight.
func (r *reader) readHold(path string, n Node) {
	r.draft.maxHold = DefaultMaxHold
	at, item, given := r.findKey(path, n, "max_hold")
	switch {
	case !given:
	case item.Kind == String && item.Text == "forever":
		r.draft.maxHold = 0
	default:
		r.readSpan(at, item, quota.Second, quota.MaxWindow, &r.draft.maxHold)
	}
}

// inFlightFits refuses fields that have no meaning for requests in flight. n is the policy as
// written.
func (r *reader) inFlightFits(path string, n Node, p *Policy) {
	some, others := p.InFlight()
	if !some {
		r.refuseUnused(path, n, "max_hold", "is for limits of requests in flight only")
		if !p.Counting.Algorithm.Queues() {
			r.refuseUnused(path, n, "max_wait", "is for algorithm: "+algorithmsThat(quota.Algorithm.Queues)+
				" and for limits of requests in flight only")
		}
		return
	}
	if !others {
		r.refuseUnused(path, n, "algorithm", "is for quotas: requests in flight are counted in one way")
		r.refuseUnused(path, n, "cost", "is for quotas: a request in flight takes one place, whatever it costs")
	}
	if p.Counting.Algorithm.Queues() {
		r.failAt(path+".algorithm", "cannot be "+p.Counting.Algorithm.String()+
			" beside in_flight: both have requests wait, and one max_wait cannot be for both; write two policies")
	}
	switch p.Mode {
	case ModeStrict:
		r.failAt(path+".mode", "cannot be strict with in_flight: a lost answer would leave a request counted; use "+
			"leased, which is as exact, or local; a strict quota needs its own policy")
	case ModeOptimistic:
		r.failAt(path+".mode", "cannot be optimistic with in_flight: requests beyond the limit cannot be paid back; "+
			"use leased or local; an optimistic quota needs its own policy")
	}
}

// refuseUnused refuses a field that has no meaning in its place.
func (r *reader) refuseUnused(path string, n Node, key, reason string) {
	if at, _, given := r.findKey(path, n, key); given {
		r.failAt(at, reason)
	}
}

// inFlightBound returns the largest number of requests in flight at the same time, as text.
func (l Limit) inFlightBound() string { return "at most " + inDigits(l.Quota) + " requests in flight" }

// inFlightNotes returns notes for operators about limits of requests in flight, if a number of
// Envoys share them.
func (p *Policy) inFlightNotes(envoys int64) (notes []string) {
	some, _ := p.InFlight()
	if !some || p.Adaptive.Max > 0 {
		return nil
	}
	// All limits of a policy have the same max_hold and max_wait.
	hold, wait := quota.Span(0), quota.Span(0)
	for _, limits := range [][]Limit{p.Limits, p.Candidate} {
		for _, l := range limits {
			if l.InFlight {
				hold, wait = l.Window, l.MaxWait
			}
		}
	}
	if hold == 0 {
		notes = append(notes, "a request counts for as long as it lasts")
	} else {
		notes = append(notes, "a request that lasts longer than "+FormatSpan(hold)+" no longer counts after that "+
			"time, and is reported; it goes on, on top of the limit")
	}
	if wait > 0 {
		notes = append(notes, "a request waits for a place for at most "+FormatSpan(wait)+"; in each worker no more "+
			"requests wait than the limit allows")
	}
	if p.Mode == ModeLeased {
		notes = append(notes, p.permitNotes(envoys)...)
	}
	return notes
}

// permitNotes returns notes for operators about leased permits, if a number of Envoys share them.
func (p *Policy) permitNotes(envoys int64) (notes []string) {
	ttl := FormatSpan(inflight.TTL)
	notes = append(notes, "the places of an Envoy that crashes are free again after "+ttl)
	notice := "requests in flight at an Envoy that is cut off from the control plane come on top of the limit from " +
		ttl + " on"
	for _, l := range p.Limits {
		if l.InFlight && p.OnFailure.Position(StepShare) >= 0 {
			notice += ", and by its share it has up to " + inDigits(inflight.Share(l.Quota, envoys)) + " (with " +
				inDigits(envoys) + " Envoys)"
			break
		}
	}
	return append(notes, notice)
}

// quotaLimits returns the limits that are not limits of requests in flight and not Suspended.
func quotaLimits(limits []Limit) (others []Limit) {
	for _, l := range limits {
		if !l.InFlight && !l.Suspended() {
			others = append(others, l)
		}
	}
	return others
}

// costFits reports whether one request fits into the limit's burst, and returns that burst.
func (p *Policy) costFits(l Limit) (burst string, fits bool) {
	most := l.Params.Burst
	if usual := p.Usual(l); !usual.Suspended() { // A caller who is not suspended by a default of 0 brings figures.
		most = usual.Params.Burst
	}
	return strconv.FormatInt(most, 10), l.InFlight || l.Suspended() || p.Cost.Source.Name != "" || p.Cost.Fixed <= most
}
