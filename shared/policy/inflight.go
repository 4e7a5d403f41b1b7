package policy

import (
	"strconv"

	"github.com/weir-proxy/weir/shared/inflight"
	"github.com/weir-proxy/weir/shared/quota"
)

const (
	// DefaultMaxHold is how long a request counts as in flight at most, if its policy does not say.
	DefaultMaxHold = 10 * quota.Minute
	// MaxInFlight is the largest limit of requests in flight.
	MaxInFlight = 1_000_000
)

// NewInFlight makes a limit of requests in flight. A request counts for at most hold, 0 is for as
// long as it lasts, and waits for a place for at most wait. For code that knows rates alone its
// Params are a bucket of as many tokens.
func NewInFlight(most int64, hold, wait quota.Span) (Limit, error) {
	params, err := quota.NewParams(most, quota.Second, most)
	c := Counting{InFlight: true, MaxWait: wait}
	return Limit{Counting: c, Quota: most, Window: hold, Params: params}, err
}

// AsInFlight is the limit of requests in flight that a snapshot writes as a quota of as many.
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

// inFlight reads the number of a limit of requests in flight.
func (r *reader) inFlight(path string, n Node, c Counting) (Limit, bool) {
	var most int64
	if contains(n.Keys, "quota") || contains(n.Keys, "window") || contains(n.Keys, "burst") {
		r.problem(path, "has in_flight and other fields: requests in flight have no quota, window or burst; "+
			"write the two as items of a list")
		return Limit{}, false
	}
	at, item, _ := r.given(path, n, "in_flight")
	if item.Kind == Map {
		r.problem(at, "must be a whole number: what callers bring themselves is for quota and burst alone")
		return Limit{}, false
	}
	if !r.integer(at, item, 1, MaxInFlight, &most) {
		return Limit{}, false
	}
	l, err := NewInFlight(most, r.draft.maxHold, c.MaxWait)
	if err != nil {
		r.problem(at, err.Error())
	}
	return l, err == nil
}

// hold reads how long a request counts as in flight at most.
func (r *reader) hold(path string, n Node) {
	r.draft.maxHold = DefaultMaxHold
	at, item, given := r.given(path, n, "max_hold")
	switch {
	case !given:
	case item.Kind == String && item.Text == "forever":
		r.draft.maxHold = 0
	default:
		r.span(at, item, quota.Second, quota.MaxWindow, &r.draft.maxHold)
	}
}

// inFlightFits refuses what requests in flight have no use for. n is the policy as written.
func (r *reader) inFlightFits(path string, n Node, p *Policy) {
	some, others := p.InFlight()
	if !some {
		r.unused(path, n, "max_hold", "is for limits of requests in flight only")
		if !p.Counting.Algorithm.Queues() {
			r.unused(path, n, "max_wait", "is for algorithm: "+algorithmsThat(quota.Algorithm.Queues)+
				" and for limits of requests in flight only")
		}
		return
	}
	if !others {
		r.unused(path, n, "algorithm", "is for quotas: requests in flight are counted in one way")
		r.unused(path, n, "cost", "is for quotas: a request in flight takes one place, whatever it costs")
	}
	if p.Counting.Algorithm.Queues() {
		r.problem(path+".algorithm", "cannot be "+p.Counting.Algorithm.String()+
			" beside in_flight: both have requests wait, and one max_wait cannot be for both; write two policies")
	}
	switch p.Mode {
	case ModeStrict:
		r.problem(path+".mode", "cannot be strict with in_flight: a lost answer would leave a request counted; use "+
			"leased, which is as exact, or local; a strict quota needs its own policy")
	case ModeOptimistic:
		r.problem(path+".mode", "cannot be optimistic with in_flight: what runs too much cannot be paid back; use "+
			"leased or local; an optimistic quota needs its own policy")
	}
}

// unused refuses a field that means nothing where it stands.
func (r *reader) unused(path string, n Node, key, reason string) {
	if at, _, given := r.given(path, n, key); given {
		r.problem(at, reason)
	}
}

// inFlightBound states how many requests are in flight at once.
func (l Limit) inFlightBound() string { return "at most " + count(l.Quota) + " requests in flight" }

// inFlightNotes are what an operator should know about limits of requests in flight that so many
// Envoys share.
func (p *Policy) inFlightNotes(nodes int64) (notes []string) {
	some, _ := p.InFlight()
	if !some || p.Adaptive.Max > 0 {
		return nil
	}
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
		notes = append(notes, "a request that lasts longer than "+FormatSpan(hold)+" is counted out, and reported; "+
			"it runs on beside the limit")
	}
	if wait > 0 {
		notes = append(notes, "a request waits for a place for at most "+FormatSpan(wait)+", in each worker at most "+
			"as many as the limit")
	}
	if p.Mode == ModeLeased {
		notes = append(notes, p.permitNotes(nodes)...)
	}
	return notes
}

// permitNotes are what an operator should know about permits that are leased to so many Envoys.
func (p *Policy) permitNotes(nodes int64) (notes []string) {
	ttl := FormatSpan(inflight.TTL)
	notes = append(notes, "the places of an Envoy that crashes are free again after "+ttl)
	beside := "what an Envoy that is cut off from the control plane has in flight counts beside the limit from " + ttl +
		" on"
	for _, l := range p.Limits {
		if l.InFlight && p.OnFailure.Position(StepShare) >= 0 {
			beside += ", and by its share it has up to " + count(inflight.Share(l.Quota, nodes)) + " (with " +
				count(nodes) + " Envoys)"
			break
		}
	}
	return append(notes, beside)
}

// quotas are the limits that are not of requests in flight and not Suspended.
func quotas(limits []Limit) (others []Limit) {
	for _, l := range limits {
		if !l.InFlight && !l.Suspended() {
			others = append(others, l)
		}
	}
	return others
}

// costFits reports whether one request fits into the limit's burst, and what that is.
func (p *Policy) costFits(l Limit) (burst string, fits bool) {
	most := l.Params.Burst
	if usual := p.Usual(l); !usual.Suspended() { // A caller who is not suspended by a default of 0 brings figures.
		most = usual.Params.Burst
	}
	return strconv.FormatInt(most, 10), l.InFlight || l.Suspended() || p.Cost.Source.Name != "" || p.Cost.Fixed <= most
}
