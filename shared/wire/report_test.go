package wire_test

import (
	"reflect"
	"testing"

	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/wire"
)

var report = wire.Report{
	Node: []byte("edge-1"), Boot: 0x0123456789abcdef, Version: 42, Worst: policy.StepDeny,
	Steps: []wire.PolicyStep{{Policy: 0, Step: policy.StepShare}, {Policy: 300, Step: policy.StepDeny}},
}

func TestReportReadsBack(t *testing.T) {
	message := wire.AppendReport(nil, report)
	golden(t, "report", message)
	var back wire.Report
	if err := wire.DecodeReport(message, &back); err != nil || !reflect.DeepEqual(back, report) {
		t.Errorf("%+v: %v", back, err)
	}
}

func TestDamagedReportsAreRefused(t *testing.T) {
	var back wire.Report
	message := wire.AppendReport(nil, report)
	for i := range message {
		if wire.DecodeReport(message[:i], &back) == nil {
			t.Errorf("cut at %d it was accepted", i)
		}
	}
	for name, m := range map[string]wire.Report{
		"too long a name":   {Node: make([]byte, wire.MaxNodeID+1)},
		"an unknown step":   {Worst: policy.Steps},
		"a policy's too":    {Steps: []wire.PolicyStep{{Step: policy.Steps}}},
		"too high an index": {Steps: []wire.PolicyStep{{Policy: policy.MaxPolicies}}},
		"too many":          {Steps: make([]wire.PolicyStep, wire.MaxSteps+1)},
	} {
		if wire.DecodeReport(wire.AppendReport(nil, m), &back) == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

func FuzzReport(f *testing.F) {
	f.Add(wire.AppendReport(nil, report))
	f.Fuzz(func(t *testing.T, b []byte) {
		var m wire.Report
		if wire.DecodeReport(b, &m) == nil && len(m.Steps) > wire.MaxSteps {
			t.Errorf("%d steps", len(m.Steps))
		}
	})
}
