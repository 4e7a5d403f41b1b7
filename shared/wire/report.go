package wire

import (
	"encoding/binary"

	"github.com/weir-proxy/weir/shared/policy"
)

const reportMagic = "WRRP"

// MaxSteps bounds the policies in one report.
const MaxSteps = 1024

// Report is a node's report of the step of its failure ladder on which each policy is.
type Report struct {
	// Node, at most MaxNodeID bytes, and Boot name the node as in a LeaseRequest. Read from a
	// message, Node aliases it.
	Node []byte
	Boot uint64
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

// AppendReport appends the message to dst.
func AppendReport(dst []byte, m Report) []byte {
	dst = header(dst, reportMagic)
	dst = append(putUvarint(dst, int64(len(m.Node))), m.Node...)
	dst = binary.LittleEndian.AppendUint64(dst, m.Boot)
	dst = binary.LittleEndian.AppendUint64(dst, m.Version)
	dst = putUvarint(append(dst, uint8(m.Worst)), int64(len(m.Steps)))
	for _, s := range m.Steps {
		dst = append(putUvarint(dst, int64(s.Policy)), uint8(s.Step))
	}
	return dst
}

// DecodeReport reads a message into m, reusing m.Steps. After an error nothing in m counts.
func DecodeReport(b []byte, m *Report) error {
	c := cursor{buf: b}
	c.asked(reportMagic)
	m.Node, m.Boot, m.Version = c.text(MaxNodeID), c.u64(), c.u64()
	m.Worst = c.step()
	m.Steps = m.Steps[:0]
	for n := c.within(0, MaxSteps); n > 0 && c.err == nil; n-- {
		m.Steps = append(m.Steps, PolicyStep{Policy: uint32(c.within(0, policy.MaxPolicies-1)), Step: c.step()})
	}
	return c.end()
}

func (c *cursor) step() policy.Step {
	s := policy.Step(c.u8())
	if s >= policy.Steps {
		c.fail(ErrValue)
	}
	return s
}
