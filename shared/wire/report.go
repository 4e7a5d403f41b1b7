package wire

import "encoding/binary"

const reportMagic = "WRRP"

// MaxReport bounds a report in bytes. A report with the longest sections is shorter.
const MaxReport = 256 << 10

// Report is a report of one worker of a node to the control plane, in sections. A section is nil if
// the worker has no data for it.
type Report struct {
	// Node, at most MaxNodeID bytes, and Boot name the node as in a LeaseRequest. Read from a
	// message, Node aliases the message, and the sections have it too.
	Node []byte
	Boot uint64

	Offences  *Offences
	Ladder    *Ladder
	Decisions *Decisions
	Measures  *Measures
}

// Section numbers the sections of a report, in the order in which they are written.
type Section uint8

// The sections of a report.
const (
	SectionOffences Section = iota
	SectionLadder
	SectionDecisions
	SectionMeasures
	SectionCount
)

// Sections is a set of sections, one bit each.
type Sections uint8

// Has reports whether a section is in the set.
func (s Sections) Has(one Section) bool { return s>>one&1 != 0 }

// Sections returns the sections that a report has.
func (m *Report) Sections() (s Sections) {
	for i, has := range [SectionCount]bool{
		m.Offences != nil, m.Ladder != nil, m.Decisions != nil, m.Measures != nil,
	} {
		s |= Sections(boolByte(has)) << i
	}
	return s
}

// AppendReport appends a report to dst.
func AppendReport(dst []byte, m *Report) []byte {
	dst = appendHeader(dst, reportMagic)
	dst = putRaw(putUvarint(dst, int64(len(m.Node))), m.Node)
	dst = append(binary.LittleEndian.AppendUint64(dst, m.Boot), uint8(m.Sections()))
	if m.Offences != nil {
		dst = appendOffences(dst, m.Offences)
	}
	if m.Ladder != nil {
		dst = appendLadder(dst, m.Ladder)
	}
	if m.Decisions != nil {
		dst = appendDecisions(dst, m.Decisions)
	}
	if m.Measures != nil {
		dst = appendMeasures(dst, m.Measures)
	}
	return dst
}

// DecodeReport reads a message. It refuses a message with an unknown section or without any
// section.
func DecodeReport(b []byte) (m Report, err error) {
	if len(b) > MaxReport {
		return m, ErrTooLarge
	}
	c := cursor{buf: b}
	c.readAsked(reportMagic)
	m.Node, m.Boot = c.readText(MaxNodeID), c.u64()
	sections := Sections(c.u8())
	if sections == 0 || sections >= 1<<SectionCount {
		c.failWith(ErrValue)
	}
	if sections.Has(SectionOffences) {
		m.Offences = c.readOffences()
	}
	if sections.Has(SectionLadder) {
		m.Ladder = c.readLadder()
	}
	if sections.Has(SectionDecisions) {
		m.Decisions = c.readDecisions()
	}
	if sections.Has(SectionMeasures) {
		m.Measures = c.readMeasures()
	}
	m.SetNode(m.Node)
	return m, c.endMessage()
}

// SetNode sets the node's name in a report, and in the sections that have the name too.
func (m *Report) SetNode(node []byte) {
	m.Node = node
	if m.Offences != nil {
		m.Offences.Node = node
	}
	if m.Decisions != nil {
		m.Decisions.Node = node
	}
	if m.Measures != nil {
		m.Measures.Node = node
	}
}
