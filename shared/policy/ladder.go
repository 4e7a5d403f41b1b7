package policy

import "github.com/weir-proxy/weir/shared/quota"

// Step is a step of the failure ladder, in the order in which a failure takes them. The zero value is the ground: the control
// plane answers.
type Step uint8

// On the ground the control plane answers. StepLeases: it does not, and nothing but unexpired leases has been needed so far.
// StepShare: by this node's share of the limit. StepAllow and StepDeny: everything that needs a token passes, or is refused.
const (
	StepGround Step = iota
	StepLeases
	StepShare
	StepAllow
	StepDeny
	Steps
)

// String is the step's name in metrics, logs and the REST API.
func (s Step) String() string {
	if s >= Steps {
		return "unknown"
	}
	return [...]string{"normal", "leases", "share", "allow", "deny"}[s]
}

// At is the step that decides a request whose tokens cannot be had, a span after the failure began: StepShare, StepAllow or
// StepDeny.
func (f OnFailure) At(failing quota.Span) Step {
	switch {
	case f.Then == ThenLocal, failing < f.LocalFor:
		return StepShare
	case f.Then == ThenAllow:
		return StepAllow
	}
	return StepDeny
}
