package policy

import (
	"strconv"
	"strings"
)

// Adaptive is a limit of requests in flight that finds its own value. The zero value is no limit.
// Its policy has one limit, of Max requests in flight.
type Adaptive struct {
	Min, Max int64
	// Percentile is the percentile of the latency that the limit follows, 50 to 99.
	Percentile uint8
	// By are the signals that close the limit; ByLatency is always among them.
	By Signals
}

// Signals are the signals that close an adaptive limit, a bit each.
type Signals uint8

// Latency of the upstream, lateness of the worker, and the utilisation that the upstream reports.
const (
	ByLatency Signals = 1 << iota
	ByWorker
	ByORCA
	// AllSignals has all bits.
	AllSignals = ByLatency | ByWorker | ByORCA
)

var signals = []choice{{"latency", uint8(ByLatency)}, {"worker", uint8(ByWorker)}, {"orca", uint8(ByORCA)}}

// LeastPercentile and MostPercentile bound Adaptive.Percentile.
const (
	LeastPercentile, MostPercentile = 50, 99
	defaultPercentile               = 90
)

// ClosedBy returns By as a policy writes it, separated by commas.
func (a Adaptive) ClosedBy() string {
	var names []string
	for _, c := range signals {
		if uint8(a.By)&c.value != 0 {
			names = append(names, c.name)
		}
	}
	return strings.Join(names, ", ")
}

// readAdaptive reads an adaptive limit and its signals. n is the policy as written.
//
//go:noinline
func (r *reader) readAdaptive(path string, n Node, p *Policy) {
	at, item, given := r.findKey(path, n, "adaptive")
	if !given {
		r.refuseUnused(path, n, "shed_by", "is for adaptive limits only")
		return
	}
	a := &p.Adaptive
	*a = Adaptive{Percentile: defaultPercentile}
	r.readMap(at, item,
		field{"min", func(path string, n Node) { r.readInteger(path, n, 1, MaxInFlight, &a.Min) }},
		field{"max", func(path string, n Node) { r.readInteger(path, n, 1, MaxInFlight, &a.Max) }},
		field{"latency", func(path string, n Node) { r.readPercentile(path, n, &a.Percentile) }})
	if item.Kind == Map {
		r.requireField(at, item, "min", ": say how many requests may always be in flight")
		r.requireField(at, item, "max", ": say how many requests may be in flight at most")
		r.mustHold(at+".min", a.Min <= a.Max || a.Max == 0, "is above max")
	}
	r.readShedBy(path, n, &a.By)
	if l, err := NewInFlight(max(a.Max, 1), 0, 0); err == nil {
		p.Limits = []Limit{l}
	}
	r.adaptiveFits(path, n, p)
}

//go:noinline
func (r *reader) readPercentile(path string, n Node, into *uint8) {
	text := n.Text
	if n.Kind != String || len(text) != 3 || text[0] != 'p' || text[1]-'5' > 4 || text[2]-'0' > 9 {
		r.failAt(path, "must be a percentile of the latency from p50 to p99, not "+shorten(text))
		return
	}
	*into = (text[1]-'0')*10 + text[2] - '0'
}

//go:noinline
func (r *reader) readShedBy(path string, n Node, into *Signals) {
	at, item, given := r.findKey(path, n, "shed_by")
	if !given {
		*into = ByLatency
		return
	}
	r.readList(at, item, func(path string, n Node) {
		var one uint8
		r.readEnum(path, n, &one, signals)
		r.mustHold(path, *into&Signals(one) == 0, "is given twice")
		*into |= Signals(one)
	})
	r.mustHold(at, item.Kind != List || *into&ByLatency != 0, "must have latency, by which the limit finds itself")
}

// notBesideAdaptive are fields that have no meaning beside an adaptive limit.
var notBesideAdaptive = [...]string{
	"limit", "limits", "candidate", "reserve", "cost", "algorithm", "max_hold", "max_wait", "on_failure",
}

// adaptiveFits refuses fields that have no meaning beside an adaptive limit.
//
//go:noinline
func (r *reader) adaptiveFits(path string, n Node, p *Policy) {
	for _, key := range notBesideAdaptive {
		r.refuseUnused(path, n, key, "cannot stand beside adaptive, which finds its limit itself and counts each "+
			"request as one; write another policy")
	}
	if p.Mode != ModeLocal {
		r.failAt(path+".mode", "must be local with adaptive: an Envoy sees its own part of the load alone")
	}
	for i, part := range p.Partition {
		if part.Kind != PartUpstream && part.Kind != PartPolicyPath {
			r.failAt(r.indexPath(path+".partition", i), "must be upstream or policy_path with adaptive: the limit is "+
				"of what serves the requests, and callers would each have too few")
		}
	}
	if p.Match.IsOfCalls() {
		r.failAt(path+".match", "is of calls to the gRPC rate limit service: no Envoy sees how long they last")
	}
}

// adaptiveBound returns the bounds of the limit as text.
func (p *Policy) adaptiveBound() string {
	text := "between " + inDigits(p.Adaptive.Min) + " and " + inDigits(p.Adaptive.Max) + " requests in flight"
	if len(p.Partition) > 0 {
		text += " for each partition key"
	}
	return text + " on each Envoy"
}

// adaptiveNotes returns notes for operators about an adaptive limit.
func (p *Policy) adaptiveNotes() []string {
	if p.Adaptive.Max == 0 {
		return nil
	}
	return []string{"finds its limit by p" + strconv.Itoa(int(p.Adaptive.Percentile)) + " of the latency, and is " +
		"closed by " + p.Adaptive.ClosedBy() + "; sheds the least important class first, with status 503"}
}
