package wire

import (
	"encoding/binary"

	"github.com/weir-proxy/weir/shared/policy"
)

// MaxSteps bounds the policies in one report.
const MaxSteps = 1024

// Ladder is the section about the steps of a node's failure ladder: the present step of each
// policy.
type Ladder struct {
	// Version is the policy set that the indexes of Steps refer to.
	Version uint64
	// Worst is the highest step of any policy, including those without room in Steps.
	Worst policy.Step
	// Steps are the policies that are not on the ground.
	Steps []PolicyStep
}

// PolicyStep is the step of one policy, by its index in the policy set.
type PolicyStep struct {
	Policy uint32
	Step   policy.Step
}

func appendLadder(dst []byte, m *Ladder) []byte {
	dst = binary.LittleEndian.AppendUint64(dst, m.Version)
	dst = putUvarint(append(dst, uint8(m.Worst)), int64(len(m.Steps)))
	for _, s := range m.Steps {
		dst = append(putUvarint(dst, int64(s.Policy)), uint8(s.Step))
	}
	return dst
}

func (c *cursor) readLadder() *Ladder {
	m := &Ladder{Version: c.u64(), Worst: c.readStep()}
	for n := c.readWithin(0, MaxSteps); n > 0 && c.err == nil; n-- {
		m.Steps = append(m.Steps, PolicyStep{Policy: c.readPolicy(), Step: c.readStep()})
	}
	return m
}

func (c *cursor) readStep() policy.Step {
	s := policy.Step(c.u8())
	if s >= policy.Steps {
		c.failWith(ErrValue)
	}
	return s
}
