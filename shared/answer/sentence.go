package answer

import (
	"github.com/weir-proxy/weir/shared/dialect"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/text"
)

// About describes a refused request.
type About struct {
	Reason policy.Reason
	Source policy.DecisionSource
	// Policy is the name of the policy that refuses, Limit its limit. After is the class whose
	// reserve is not in the limit; empty for other limits.
	Policy, After []byte
	Limit         *policy.Limit
	// Cost is the request's cost, Left the tokens in the bucket.
	Cost, Left int64
	// Elsewhere means that other nodes have the places in flight that this node lacks.
	Elsewhere bool
}

// Kind returns the kind of the refusal.
func (a *About) Kind() *Kind {
	switch {
	case a.Reason != policy.ReasonFailure:
	case a.Source == policy.ByShare:
		return &shareUsed
	case a.Limit.InFlight && a.Elsewhere:
		return &heldElsewhere
	case a.Limit.InFlight && a.Source != policy.ByFailureDeny:
		return &lostCount
	case a.Source != policy.ByFailureDeny:
		return &lostUse
	}
	return &Kinds[a.Reason]
}

// Answer returns the group of the refusal. A limit that other nodes fill too is a quota for the
// caller, although the reason, which counts no refusal towards a penalty, is a failure.
func (a *About) Answer() policy.Answer {
	if a.Kind() == &heldElsewhere {
		return policy.AnswerQuota
	}
	return a.Reason.Answer()
}

// AppendSentence appends the reason as a sentence for people, and the seconds to wait, if there are
// any. It needs no escaping: it is made of numbers and of names that validation keeps plain.
func (a *About) AppendSentence(b []byte, retry int64) []byte {
	kind, l := a.Kind(), a.Limit
	switch {
	case kind.before != "":
		b = appendAround(b, kind.before, a.Policy, kind.after)
	case a.Reason == policy.ReasonTooDear:
		b = a.appendTooDear(b)
	case l.InFlight:
		b = dialect.AppendInt(appendAround(b, "Policy ", a.Policy, " allows "), l.Quota)
		b = text.Append(b, " requests at the same time, and all places are in use.")
	case l.Algorithm.Queues():
		b = appendRate(appendAround(b, "Policy ", a.Policy, " lets "), l)
		b = text.Append(b, " through, and its queue is full.")
	default:
		b = a.appendUsedUp(appendAround(b, "Policy ", a.Policy, " allows "))
	}
	if retry <= 0 {
		return b
	}
	b = dialect.AppendInt(text.Append(b, " Try again in "), retry)
	if retry == 1 {
		return text.Append(b, " second.")
	}
	return text.Append(b, " seconds.")
}

// appendTooDear says that the request costs more than can ever pass.
func (a *About) appendTooDear(b []byte) []byte {
	b = dialect.AppendInt(text.Append(b, "This request costs "), a.Cost)
	b = appendAround(b, ", and policy ", a.Policy, " never allows ")
	if a.Cost <= a.Limit.Params.Burst { // A region grants a part only.
		return text.Append(b, "as much at once in this region: waiting does not help.")
	}
	b = dialect.AppendInt(text.Append(b, "more than "), a.Limit.Params.Burst)
	return text.Append(b, " at once: waiting does not help.")
}

// appendUsedUp says how much the policy allows, and that it is used up, or that less is left than
// the request costs.
func (a *About) appendUsedUp(b []byte) []byte {
	l, atOnce := a.Limit, a.Limit.Params.Burst != a.Limit.Quota
	if atOnce {
		b = text.Append(dialect.AppendInt(b, l.Params.Burst), " at once and ")
	}
	if b = appendRate(b, l); atOnce {
		b = text.Append(b, " in the long run")
	}
	if len(a.After) > 0 {
		b = appendAround(b, " to the classes after ", a.After, "")
	}
	switch {
	case a.Left > 0:
		b = dialect.AppendInt(text.Append(b, ". This request costs "), a.Cost)
		b = dialect.AppendInt(text.Append(b, ", and "), a.Left)
		if a.Left == 1 {
			return text.Append(b, " is left.")
		}
		return text.Append(b, " are left.")
	case atOnce:
		return text.Append(b, ", and that is used up for now.")
	}
	return text.Append(b, ", and that is used up.")
}

// appendRate writes a limit as 100 per 1h.
func appendRate(b []byte, l *policy.Limit) []byte {
	b = text.Append(dialect.AppendInt(b, l.Quota), " per ")
	return policy.AppendSpan(b, l.Window)
}

// appendAround appends a name between two texts, without making a text of all three.
func appendAround(b []byte, before string, name []byte, after string) []byte {
	return text.Append(append(text.Append(b, before), name...), after)
}
