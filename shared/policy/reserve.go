package policy

import (
	"strconv"
	"strings"
)

// Reserve is the part of a policy's limits that is kept for a class, an index of Set.Priorities.
// The parts of several classes add up, from the most important class down: the classes before a
// class can also use its part.
type Reserve struct {
	Class, Percent int
}

// Steps returns the number of limits for each limit that the document names: the limit itself, and
// one more for each reserve. In every list, the limits of the document come first. They are
// repeated for each reserve, reduced to the rest for the classes after its class.
func (p *Policy) Steps() int { return 1 + len(p.Reserve) }

// Named returns the limits of a list of the policy that its document names.
func (p *Policy) Named(limits []Limit) []Limit { return limits[:len(limits)/p.Steps()] }

// Part returns a percentage of a limit: of its quota and its burst, rounded down. It reports false
// if nothing is left.
func (l Limit) Part(percent int64) (Limit, bool) {
	units, burst := l.Quota*percent/100, l.Params.Burst*percent/100
	if l.InFlight {
		part, err := NewInFlight(units, l.Window, l.MaxWait)
		return part, err == nil && units > 0
	}
	if l.Algorithm.Windowed() {
		burst = 0
	} else if burst == 0 {
		return Limit{}, false
	}
	part, err := NewLimit(l.Counting, units, l.Window, burst)
	return part, err == nil && units > 0
}

// readReserve reads the parts kept for the classes, and adds the limits that follow from them.
func (r *reader) readReserve(path string, n Node, p *Policy, set *Set) {
	if n.Kind != Map || len(n.Keys) == 0 {
		r.wrongKind(path, n, "a mapping like {critical: 20%}")
		return
	}
	before, percent := len(r.problems), [MaxClasses]int{}
	for i, key := range n.Keys {
		r.readReservePart(r.joinPath(path, key), n.Items[i], key, &percent, set)
	}
	kept := 0
	for class, part := range percent {
		if kept += part; part > 0 {
			p.Reserve = append(p.Reserve, Reserve{class, part})
		}
	}
	r.mustHold(path, kept < 100, "keeps all of the limit: leave something for the other classes")
	r.reserveFits(path, p)
	if len(r.problems) == before {
		r.addSteps(path, p)
	} else {
		p.Reserve = nil
	}
}

// readReservePart reads the part of one class.
func (r *reader) readReservePart(path string, n Node, name string, percent *[MaxClasses]int, set *Set) {
	class := set.ClassNamed(name)
	switch {
	case len(set.Priorities) == 0:
		r.failAt(path, "needs priorities, which name the classes")
		return
	case class < 0:
		r.failAt(path, "must be one of the classes "+strings.Join(classNames(set), ", ")+", not "+shorten(name))
		return
	case class == len(set.Priorities)-1:
		r.failAt(path, "is the least important class: there is none from which a part could be kept")
		return
	case percent[class] > 0:
		r.failAt(path, "is given twice")
		return
	}
	part := int64(0)
	if r.readPercentage(path, n, 1, 99, &part) {
		percent[class] = int(part)
	}
}

// readPercentage reads a text like 10%.
//
//go:noinline
func (r *reader) readPercentage(path string, n Node, low, high int64, into *int64) bool {
	text, isPercent := strings.CutSuffix(n.Text, "%")
	part, ok := parseInt(text)
	if n.Kind != String || !isPercent || !ok || part < low || part > high || text[0] < '0' {
		r.failAt(path, "must be a percentage from "+strconv.Itoa(int(low))+"% to "+strconv.Itoa(int(high))+"%, not "+
			shorten(n.Text))
		return false
	}
	*into = part
	return true
}

func classNames(set *Set) (names []string) {
	for i := range set.Priorities {
		names = append(names, set.Priorities[i].Name)
	}
	return names
}

// reserveFits refuses reserves that the policy cannot support.
func (r *reader) reserveFits(path string, p *Policy) {
	if p.Counting.Algorithm.Queues() {
		r.failAt(path, "cannot be of a "+p.Counting.Algorithm.String()+": a queue gives out its turns in order, "+
			"and a turn that is kept would hold up those behind it; use algorithm: token_bucket")
	}
	if p.Match.IsOfCalls() {
		r.failAt(path, "cannot be of a policy for calls to the gRPC rate limit service: calls have no class")
	}
	if len(p.Figures) > 0 {
		r.failAt(path, "cannot be of figures that requests bring: a part of each caller's own would be no part of "+
			"the whole; use numbers")
	}
}

// reserveNotes returns how much the classes have of the limits with reserves.
func (p Policy) reserveNotes() (notes []string) {
	left := 100
	for _, one := range p.Reserve {
		left -= one.Percent
		notes = append(notes, "the classes after the first "+inDigits(int64(one.Class+1))+" together have "+
			strconv.Itoa(left)+" % of it, whether the rest is in use or not")
	}
	return notes
}

// addSteps adds the limits of the classes that reserves are kept from.
func (r *reader) addSteps(path string, p *Policy) {
	if len(p.Tiers) == 0 {
		p.Limits = r.limitsWithSteps(path, p, p.Limits)
	} else {
		var all []Limit
		for i := range p.Tiers {
			from := len(all)
			all = append(all, r.limitsWithSteps(path, p, p.LimitsOf(i))...)
			p.Tiers[i] = TierLimits{from, len(all)}
		}
		p.Limits = all
	}
	p.Candidate = r.limitsWithSteps(path, p, p.Candidate)
}

// limitsWithSteps returns limits of the document, followed by the rest of each limit for the
// classes after each reserve's class.
func (r *reader) limitsWithSteps(path string, p *Policy, named []Limit) []Limit {
	if len(named)*p.Steps() > MaxLimits {
		r.failAt(path, "makes "+strconv.Itoa(p.Steps())+" limits of each, and with "+strconv.Itoa(len(named))+
			" there are more than "+strconv.Itoa(MaxLimits))
		return named
	}
	limits, left := append([]Limit(nil), named...), int64(100)
	for _, one := range p.Reserve {
		left -= int64(one.Percent)
		for _, l := range named {
			part, some := l.Part(left)
			if l.Suspended() {
				part, some = l, true
			}
			if !some {
				r.failAt(path, "leaves nothing of a limit of "+inDigits(l.Quota)+" for the other classes")
				return named
			}
			limits = append(limits, part)
		}
	}
	return limits
}
