package wire_test

import (
	"bytes"
	"reflect"
	"testing"

	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/wire"
)

var ladder = wire.Ladder{Version: 42, Worst: policy.StepDeny,
	Steps: []wire.PolicyStep{{Policy: 0, Step: policy.StepShare}, {Policy: 300, Step: policy.StepDeny}}}

var report = wire.Report{
	Node: []byte("edge-1"), Boot: 0x0123456789abcdef,
	Offences: &offences, Ladder: &ladder, Decisions: &decisions, Measures: &measures,
}

// some returns a report with some of the sections of m.
func some(m wire.Report, sections wire.Sections) wire.Report {
	for i, section := range []any{&m.Offences, &m.Ladder, &m.Decisions, &m.Measures} {
		if !sections.Has(wire.Section(i)) {
			reflect.ValueOf(section).Elem().SetZero()
		}
	}
	return m
}

// Any sections of a report travel together, each as it is alone.
func TestReportReadsBack(t *testing.T) {
	golden(t, "report", wire.AppendReport(nil, &report))
	for sections := wire.Sections(1); sections < 1<<wire.SectionCount; sections++ {
		m := some(report, sections)
		back, err := wire.DecodeReport(wire.AppendReport(nil, &m))
		if err != nil || !reflect.DeepEqual(back, m) || back.Sections() != sections {
			t.Errorf("sections %b: %+v: %v", sections, back, err)
		}
	}
}

// A section that this build does not know is not passed over, and there is none without a name.
func TestDamagedReportsAreRefused(t *testing.T) {
	message := wire.AppendReport(nil, &report)
	for i := range message {
		if _, err := wire.DecodeReport(message[:i]); err == nil {
			t.Errorf("cut at %d it was accepted", i)
		}
	}
	at := bytes.IndexByte(message, 1<<wire.SectionCount-1)
	for _, sections := range []byte{0, 1 << wire.SectionCount, 0x80, 0xff} {
		other := bytes.Clone(message)
		other[at] = sections
		if _, err := wire.DecodeReport(other); err != wire.ErrValue {
			t.Errorf("sections %b: %v", sections, err)
		}
	}
	if _, err := wire.DecodeReport(append(message, 0)); err != wire.ErrTrailing {
		t.Errorf("with a byte more: %v", err)
	}
	areRefused(t, map[string]wire.Report{
		"too long a name": {Node: make([]byte, wire.MaxNodeID+1), Ladder: &ladder},
		"no section":      {},
	})
}

func TestDamagedLaddersAreRefused(t *testing.T) {
	for name, m := range map[string]wire.Ladder{
		"an unknown step":   {Worst: policy.Steps},
		"a policy's too":    {Steps: []wire.PolicyStep{{Step: policy.Steps}}},
		"too high an index": {Steps: []wire.PolicyStep{{Policy: policy.MaxPolicies}}},
		"too many":          {Steps: make([]wire.PolicyStep, wire.MaxSteps+1)},
	} {
		areRefused(t, map[string]wire.Report{name: {Ladder: &m}})
	}
}

// areRefused checks that reports are refused, also beside sections that are as they should be.
func areRefused(t *testing.T, reports map[string]wire.Report) {
	t.Helper()
	for name, m := range reports {
		if _, err := wire.DecodeReport(wire.AppendReport(nil, &m)); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

// The largest sections fit into one report, so that a node never makes a report that is refused and
// no section waits for another section.
func TestTheLargestReportFits(t *testing.T) {
	m := wire.Report{Node: make([]byte, wire.MaxNodeID), Ladder: &wire.Ladder{},
		Offences: largestOffences(), Decisions: largestDecisions(), Measures: largestMeasures()}
	for range wire.MaxSteps {
		m.Ladder.Steps = append(m.Ladder.Steps, wire.PolicyStep{Policy: policy.MaxPolicies - 1, Step: policy.StepDeny})
	}
	m.Offences.Node, m.Decisions.Node, m.Measures.Node = m.Node, m.Node, m.Node
	message := wire.AppendReport(nil, &m)
	if back, err := wire.DecodeReport(message); err != nil || !reflect.DeepEqual(back, m) {
		t.Errorf("%d bytes: %v", len(message), err)
	}
	if _, err := wire.DecodeReport(make([]byte, wire.MaxReport+1)); err != wire.ErrTooLarge {
		t.Errorf("a larger message is read: %v", err)
	}
}

func FuzzReport(f *testing.F) {
	for sections := wire.Sections(1); sections < 1<<wire.SectionCount; sections++ {
		m := some(report, sections)
		f.Add(wire.AppendReport(nil, &m))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := wire.DecodeReport(b)
		if err != nil {
			return
		}
		again, err := wire.DecodeReport(wire.AppendReport(nil, &m))
		if err != nil || !reflect.DeepEqual(m, again) {
			t.Errorf("%+v is read as %+v: %v", m, again, err)
		}
	})
}
