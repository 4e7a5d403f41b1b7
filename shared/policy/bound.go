package policy

import (
	"strconv"

	"github.com/weir-proxy/weir/shared/lease"
)

// Bound states, for people, the most that the policy lets through in any interval, in the words of its limit.
func (p Policy) Bound() string {
	where := " over all Envoys, in every interval"
	if p.Mode == ModeLocal {
		where = " on each Envoy, in every interval"
	}
	per := ""
	if len(p.Partition) > 0 {
		per = " for each partition key"
	}
	most := "at most "
	for i, l := range p.Limits {
		if i > 0 {
			most += ", and at most "
		}
		most += count(l.Params.Burst) + " at once + " + count(l.Quota) + " per " + FormatSpan(l.Window)
	}
	return most + per + where
}

// Notes are what an operator should know about the policy beside its bound.
func (p Policy) Notes() []string {
	var notes []string
	switch {
	case p.Enforced == EnforcedOff:
		notes = append(notes, "switched off")
	case p.Enforced == EnforcedShadow:
		notes = append(notes, "in shadow: decided and counted, no request is touched")
	case p.Enforced < EnforcedAll:
		notes = append(notes, "enforced for "+strconv.Itoa(int(p.Enforced))+" % of the partition keys, the others in shadow")
	}
	for _, l := range p.Limits {
		if p.Mode == ModeLeased && lease.TTL(l.Params) == 0 {
			notes = append(notes, "its bucket refills within a second, so nothing is leased: every request asks the control plane, as in strict")
			break
		}
	}
	if p.Mode != ModeLocal {
		notes = append(notes, "without the control plane: "+p.OnFailure.String())
	}
	return notes
}

// String says, for people, what happens while the control plane cannot be reached.
func (f OnFailure) String() string {
	then := [...]string{ThenAllow: "allow", ThenDeny: "deny", ThenLocal: "each Envoy's even share"}[f.Then]
	if f.LocalFor == 0 || f.Then == ThenLocal {
		return then
	}
	return "each Envoy's even share for " + FormatSpan(f.LocalFor) + ", then " + then
}

// String is the mode's name in the policy language.
func (m Mode) String() string {
	return [...]string{ModeLeased: "leased", ModeLocal: "local", ModeStrict: "strict"}[m]
}

// count groups digits so that large figures can be read.
func count(n int64) string {
	text := strconv.FormatInt(n, 10)
	for i := len(text) - 3; i > 0; i -= 3 {
		text = text[:i] + " " + text[i:]
	}
	return text
}
