package failover

import (
	"encoding/binary"

	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/quota"
)

// record is the shared knowledge of a process's workers. The zero value means that the control
// plane answers.
type record struct {
	// since is when the control plane stopped answering a worker; 0: it answers. until is when that
	// ends to count.
	since, until quota.Instant
	// generation is the generation of the policy set of steps. steps has, for each policy, the
	// furthest step on which a request was decided.
	generation uint64
	steps      []byte
	// changes grows with each change that must be reported. reported is its value in the last
	// report that arrived.
	changes, reported uint64
}

const headSize = 5 * 8

// decode reads a value. Unreadable bytes count as the zero record.
func (r *record) decode(b []byte) {
	if len(b) < headSize {
		*r = record{steps: r.steps[:0]}
		return
	}
	r.since = quota.Instant(binary.LittleEndian.Uint64(b))
	r.until = quota.Instant(binary.LittleEndian.Uint64(b[8:]))
	r.generation = binary.LittleEndian.Uint64(b[16:])
	r.changes = binary.LittleEndian.Uint64(b[24:])
	r.reported = binary.LittleEndian.Uint64(b[32:])
	r.steps = append(r.steps[:0], b[headSize:]...)
}

// appendTo appends the record's value.
func (r *record) appendTo(b []byte) []byte {
	for _, n := range [...]uint64{uint64(r.since), uint64(r.until), r.generation, r.changes, r.reported} {
		b = binary.LittleEndian.AppendUint64(b, n)
	}
	return append(b, r.steps...)
}

// stepMask returns the steps that some policy is on, one bit each. While the control plane is away,
// policies that need no further step are on StepLeases.
func (r *record) stepMask() uint8 {
	if r.since == 0 {
		return 1 << policy.StepGround
	}
	mask := uint8(1 << policy.StepLeases)
	for _, step := range r.steps {
		if step != 0 && step < byte(policy.Steps) {
			mask |= 1 << step
		}
	}
	return mask
}

// worstStep returns the highest step of any policy.
func (r *record) worstStep() policy.Step {
	worst := policy.StepGround
	for mask := r.stepMask(); mask > 1; mask >>= 1 {
		worst++
	}
	return worst
}
