package policy

import (
	"strconv"

	"github.com/weir-proxy/weir/shared/penalty"
	"github.com/weir-proxy/weir/shared/quota"
)

// Bounds of penalties.
const (
	// MaxRefusals is the most refusals that an offence may take.
	MaxRefusals = 10_000
	// MaxPenalty is the longest penalty, and the longest time after which a level is forgotten.
	MaxPenalty = 366 * quota.Day
	// MaxFactor is the most by which a further offence may lengthen a penalty.
	MaxFactor = 10
	// MaxWide bounds the policies whose penalties hold under every policy: each costs every request
	// a look.
	MaxWide = 4
)

// defaultPenalty is a penalty for which only the offence is given.
var defaultPenalty = penalty.Rule{
	For: quota.Minute, Factor: 2, Max: quota.Day, Forget: quota.Hour, Jitter: 10,
}

// scopes are the ranges in which a penalty holds.
var scopes = []choice{{"policy", 0}, {"all", 1}}

// readPenalty reads a penalty.
func (r *reader) readPenalty(path string, n Node) *penalty.Rule {
	p, all := defaultPenalty, uint8(0)
	r.readMap(path, n,
		field{"after", func(path string, n Node) {
			r.readMap(path, n,
				field{"refusals", r.numberField(MaxRefusals, &p.Refusals)},
				field{"within", r.timeField(quota.Day, &p.Within)},
			)
			if n.Kind == Map {
				r.requireField(path, n, "refusals", "")
				r.requireField(path, n, "within", "")
			}
		}},
		field{"for", r.timeField(MaxPenalty, &p.For)},
		field{"factor", r.numberField(MaxFactor, &p.Factor)},
		field{"max", r.timeField(MaxPenalty, &p.Max)},
		field{"forget", r.timeField(MaxPenalty, &p.Forget)},
		field{"jitter", func(path string, n Node) { r.readPercentage(path, n, 0, 100, &p.Jitter) }},
		field{"extend", r.flagField(&p.Extend)},
		field{"shadow", r.flagField(&p.Shadow)},
		field{"scope", func(path string, n Node) { r.readEnum(path, n, &all, scopes) }},
	)
	// Check the whole rule, and fill in the longest penalty.
	if n.Kind == Map {
		r.requireField(path, n, "after", ": write after: {refusals: 5, within: 1m}")
	}
	if _, _, given := r.findKey(path, n, "max"); !given {
		p.Max = max(p.Max, p.For)
	}
	r.mustHold(r.joinPath(path, "max"), p.Max >= p.For, "is shorter than for, the first penalty")
	p.All = all == 1
	return &p
}

// numberField reads a field with a whole number from 1 to high.
//
//go:noinline
func (r *reader) numberField(high int64, into *int64) func(path string, n Node) {
	return func(path string, n Node) { r.readInteger(path, n, 1, high, into) }
}

// timeField reads a field with a length of time from a second to high.
//
//go:noinline
func (r *reader) timeField(high quota.Span, into *quota.Span) func(path string, n Node) {
	return func(path string, n Node) { r.readSpan(path, n, quota.Second, high, into) }
}

// flagField reads a field with true or false.
//
//go:noinline
func (r *reader) flagField(into *bool) func(path string, n Node) {
	return func(path string, n Node) {
		if n.Kind != Bool {
			r.wrongKind(path, n, "true or false")
		}
		*into = n.Text == "true"
	}
}

// penaltyFits refuses a penalty for a partition that does not distinguish callers: it would hit all
// of them.
//
//go:noinline
func (r *reader) penaltyFits(path string, p *Policy) {
	if p.Penalty == nil {
		return
	}
	callers, consumers := false, false
	for _, part := range p.Partition {
		switch part.Kind {
		case PartMethod, PartHost, PartPath, PartPolicyPath, PartTier:
		default:
			callers = true
		}
		consumers = consumers || part.Kind == PartConsumer
	}
	r.mustHold(r.joinPath(path, "penalty"), callers, "needs a partition that tells callers apart, like [consumer] or "+
		"[client_ip]: otherwise one caller's refusals would stop all")
	r.mustHold(r.joinPath(path, "penalty.scope"), !p.Penalty.All || consumers,
		"cannot be all unless the partition contains consumer: it is the consumer who is refused by every policy")
}

// countWide counts the policies whose penalties hold under every policy, and refuses too many.
func (r *reader) countWide(path string, p *Policy) {
	if p.Penalty == nil || !p.Penalty.All {
		return
	}
	r.wide++
	r.mustHold(r.joinPath(path, "penalty.scope"), r.wide != MaxWide+1, "is all in more than "+strconv.Itoa(MaxWide)+
		" policies: each of them costs every request a look")
}

// penaltyNotes returns the effects of a penalty with this number of Envoys.
func (p Policy) penaltyNotes(nodes int64) (notes []string) {
	rule := p.Penalty
	if rule == nil {
		return nil
	}
	where := ""
	if rule.All {
		where = " under every policy"
	}
	said := "after " + inDigits(rule.Refusals) + " refusals within " + FormatSpan(rule.Within) +
		" by one Envoy, all Envoys refuse the caller" + where + " for " + FormatSpan(rule.For)
	if rule.Factor > 1 && rule.Max > rule.For {
		said += ", " + inDigits(rule.Factor) + " times as long for each further offence, at most " +
			FormatSpan(rule.Max)
	}
	notes = append(notes, said+"; one level is forgotten after each "+FormatSpan(rule.Forget)+" without a penalty")
	if nodes > 1 && rule.Refusals > 1 {
		notes = append(notes, "each Envoy counts refusals alone: a caller who spreads over "+inDigits(nodes)+" Envoys "+
			"can be refused "+inDigits(nodes*(rule.Refusals-1))+" times within "+FormatSpan(rule.Within)+
			" without a penalty")
	}
	if rule.Shadow {
		notes = append(notes, "the penalty is in shadow: counted and listed, and refuses no request")
	}
	return notes
}
