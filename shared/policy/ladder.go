package policy

import (
	"strconv"

	"github.com/weir-proxy/weir/shared/quota"
)

// Step is a step of the failure ladder, in the order of a failure. The zero value is the ground:
// the control plane answers.
type Step uint8

// StepGround means that the control plane answers. StepLeases means that it does not, and that
// unexpired leases were enough so far. StepShare means that this node's share of the limit decides.
// With StepAllow every request that needs a token passes; with StepDeny it is refused.
const (
	StepGround Step = iota
	StepLeases
	StepShare
	StepAllow
	StepDeny
	Steps
)

// MaxFailureSteps bounds the steps of a policy's failure ladder.
const MaxFailureSteps = 4

// FailureStep decides, for some time, about requests that need a token while the control plane does
// not answer.
type FailureStep struct {
	// For is the duration of the step; 0 in the last step, which lasts as long as the failure.
	For quota.Span
	// Do is StepShare, StepAllow or StepDeny. Empty means that a share starts without a token.
	Do    Step
	Empty bool
}

// OnFailure is the failure ladder after the last unexpired lease. It ends with the first step
// without a time. The zero value allows every request.
type OnFailure [MaxFailureSteps]FailureStep

// DefaultOnFailure is the ladder of a policy without on_failure.
var DefaultOnFailure = OnFailure{{For: 30 * quota.Second, Do: StepShare}, {Do: StepAllow}}

// At returns the step in force when the failure has lasted for a span.
func (f *OnFailure) At(failing quota.Span) FailureStep {
	step := &f[0]
	for i := range f {
		step = &f[i]
		if step.For == 0 || failing < step.For {
			break
		}
		failing -= step.For
	}
	if step.Do == StepGround {
		return FailureStep{Do: StepAllow}
	}
	return *step
}

// Last returns the last step.
func (f *OnFailure) Last() FailureStep { return f.At(quota.Never) }

// Position returns the last index of a step in the ladder; -1 if the ladder does not have it.
func (f *OnFailure) Position(s Step) int {
	last := -1
	for i := range f {
		step := f[i]
		if step.Do == StepGround {
			step.Do = StepAllow
		}
		if step.Do == s {
			last = i
		}
		if step.For == 0 {
			break
		}
	}
	return last
}

// String describes for operators how requests are decided while the control plane cannot be
// reached.
func (f OnFailure) String() string {
	said := ""
	for i := range f {
		step := f[i]
		said += step.Do.inWords()
		if step.Empty {
			said += " starting empty"
		}
		if step.For == 0 {
			break
		}
		said += " for " + FormatSpan(step.For) + ", then "
	}
	return said
}

// inWords returns a description of a step.
func (s Step) inWords() string {
	switch s {
	case StepShare:
		return "each Envoy's even share"
	case StepDeny:
		return "deny"
	}
	return "allow"
}

// readOnFailure reads a failure ladder: a list of steps, or the older form with local_for and then.
func (r *reader) readOnFailure(path string, n Node, f *OnFailure) {
	*f = OnFailure{}
	switch n.Kind {
	case List:
	case Map:
		r.readLocalThen(path, n, f)
		return
	default:
		r.wrongKind(path, n, "a list of steps like [{share: 30s}, allow]")
		return
	}
	if len(n.Items) == 0 || len(n.Items) > MaxFailureSteps {
		r.failAt(path, "must have 1 to "+strconv.Itoa(MaxFailureSteps)+" steps, like [{share: 30s}, allow]")
		return
	}
	for i, item := range n.Items {
		at := r.indexPath(path, i)
		good := r.readFailureStep(at, item, &f[i])
		switch last := i == len(n.Items)-1; {
		case !good:
		case last && f[i].For > 0:
			r.failAt(at, "must have no time: the last step lasts as long as the failure")
		case !last && f[i].For == 0:
			r.failAt(at, "needs a time, like {share: 30s}: only the last step has none")
		}
	}
}

// readFailureStep reads allow, {allow: 10s} and {share: 30s, start: empty}. A time may be forever,
// as in the last step.
func (r *reader) readFailureStep(path string, n Node, s *FailureStep) (good bool) {
	if n.Kind != Map {
		r.readEnum(path, n, (*uint8)(&s.Do), steps)
		return s.Do != StepGround
	}
	before := len(r.problems)
	for i, key := range n.Keys {
		at, item := r.joinPath(path, key), n.Items[i]
		if key == "start" {
			start := uint8(0)
			r.readEnum(at, item, &start, starts)
			s.Empty = start == 1
			continue
		}
		do := StepGround
		r.readEnum(at, Node{Kind: String, Text: key}, (*uint8)(&do), steps)
		if r.mustHold(path, do == StepGround || s.Do == StepGround, "must be one step"); do != StepGround {
			s.Do = do
		}
		if item.Kind != String || item.Text != "forever" {
			r.readSpan(at, item, quota.Millisecond, quota.MaxWindow, &s.For)
		}
	}
	if len(r.problems) == before {
		r.mustHold(path, s.Do != StepGround, "must be share, allow or deny with a time, like {share: 30s}")
		r.mustHold(path+".start", !s.Empty || s.Do == StepShare, "is for a share alone")
	}
	return len(r.problems) == before
}

// readLocalThen reads {local_for: 30s, then: allow}.
func (r *reader) readLocalThen(path string, n Node, f *OnFailure) {
	var share quota.Span
	then := uint8(StepAllow)
	r.readMap(path, n,
		field{"local_for", func(path string, n Node) { r.readSpan(path, n, 0, quota.MaxWindow, &share) }},
		field{"then", func(path string, n Node) {
			r.readEnum(path, n, &then, lastSteps)
		}},
	)
	last := FailureStep{Do: Step(then)}
	if share == 0 || last.Do == StepShare {
		*f = OnFailure{last}
		return
	}
	*f = OnFailure{{For: share, Do: StepShare}, last}
}
