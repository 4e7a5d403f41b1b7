package rls

// Outcome is the result of a call.
type Outcome = string

// The outcomes of calls.
const (
	Allowed   Outcome = "allowed"
	Refused   Outcome = "refused"
	Unlimited Outcome = "unlimited"
	Bypassed  Outcome = "bypassed"
	Banned    Outcome = "banned"
	Exempt    Outcome = "exempt"
	// Unknown is the outcome of calls before the first policy set: they pass.
	Unknown Outcome = "before_snapshot"
)

// Shadow is the result of a call for a policy in shadow or a candidate.
type Shadow = string

// The outcomes in shadow.
const (
	ShadowAllowed      Shadow = "allowed"
	ShadowRefused      Shadow = "refused"
	ShadowUndetermined Shadow = "undetermined"
)

// Meter counts calls. It must be safe for concurrent use.
type Meter interface {
	// Call counts a call.
	Call(Outcome)
	// Decided counts a call for a policy that had a part in it. Source is the source of the
	// decision, a name of policy.Sources; refused is whether the policy has refused.
	Decided(policy, source string, refused bool)
	// Watched counts a call for a policy in shadow, or for its candidate.
	Watched(policy string, candidate bool, seen Shadow)
}

// noMeter counts nothing.
type noMeter struct{}

func (noMeter) Call(Outcome)                 {}
func (noMeter) Decided(string, string, bool) {}
func (noMeter) Watched(string, bool, Shadow) {}
