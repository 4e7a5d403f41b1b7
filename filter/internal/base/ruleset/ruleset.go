// Package ruleset has a policy set in force in one VM, and its results so far: the decisions of its
// policies, and their steps on the failure ladder.
package ruleset

import (
	"github.com/weir-proxy/weir/shared/match"
	"github.com/weir-proxy/weir/shared/policy"
)

// Rules is a policy set in force. The zero value has no policy.
type Rules struct {
	Index match.Index
	// Paused counts the waiting requests that refer to the Index. While there are any, its memory
	// must not be reused.
	Paused int
	// Generation grows with each policy set that this process puts into force, also when its
	// version does not: a control plane that was set up anew starts again at version 1.
	Generation uint64
	Tally      Tally
	Steps      Steps
}

// Load compiles a snapshot and resets the results of the policies before it. After an error the
// rules must not be used.
func (r *Rules) Load(snapshot []byte) error {
	if err := r.Begin(snapshot); err != nil {
		return err
	}
	_, err := r.Continue(match.WholeSet)
	return err
}

// Begin starts a Load that Continue ends, a part at a time. Until then the rules must not be used.
func (r *Rules) Begin(snapshot []byte) error {
	r.resetResults(0)
	return r.Index.Begin(snapshot)
}

// Continue compiles the next part after Begin, and reports whether the rules are ready. Work bounds
// the work of one call, like in match.Index.Continue.
func (r *Rules) Continue(work int) (done bool, err error) {
	if done, err = r.Index.Continue(work); done && err == nil {
		r.resetResults(r.Index.Len())
	}
	return done, err
}

// resetResults makes room for the results of n policies.
func (r *Rules) resetResults(n int) {
	r.Tally.Reset(n)
	r.Steps.Reset(n)
}

// Steps are the steps of the failure ladder on which requests of each policy were last decided. The
// zero value has room for no policy.
type Steps struct {
	// At is by policy: StepGround for a policy that no request has taken to the ladder.
	At []policy.Step
	// Changed: a step was noted since Changed was last set to false.
	Changed bool
}

// Reset makes room for n policies and puts them on StepGround.
func (s *Steps) Reset(n int) {
	if cap(s.At) < n {
		s.At = make([]policy.Step, n)
	}
	s.At = s.At[:n]
	clear(s.At)
	s.Changed = false
}

// Note notes that a request of a policy was decided on a step.
func (s *Steps) Note(p uint32, step policy.Step) {
	if int(p) < len(s.At) && s.At[p] != step {
		s.At[p] = step
		s.Changed = true
	}
}
