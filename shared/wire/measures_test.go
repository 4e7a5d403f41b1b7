package wire_test

import (
	"bytes"
	"reflect"
	"testing"

	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/wire"
)

var measures = wire.Measures{Node: []byte("edge-1"), Covers: 5 * quota.Second, Items: []wire.Measure{
	{Policy: []byte("api"), CandidateRefused: 300, ShadowRefused: 1},
	{Policy: []byte("places"), Busy: 40_000, Used: 100},
}}

func TestMeasuresReadBack(t *testing.T) {
	message := wire.AppendMeasures(nil, &measures)
	golden(t, "measures", message)
	var back wire.Measures
	if err := wire.DecodeMeasures(message, &back); err != nil || !reflect.DeepEqual(back, measures) {
		t.Errorf("%+v: %v", back, err)
	}
}

// All numbers of a measure are read back as they were written.
func TestAllMeasuresReadBack(t *testing.T) {
	want := wire.Measures{Items: []wire.Measure{{Policy: []byte("a"), CandidateRefused: 1, ShadowRefused: 2, Busy: 3,
		Used: 4, CandidateUndetermined: 5, ShadowUndetermined: 6, Decided: 9, Refused: 8, Unsure: 7, Waited: 10,
		Held: 11, Version: 12}}}
	var back wire.Measures
	err := wire.DecodeMeasures(wire.AppendMeasures(nil, &want), &back)
	if err != nil || !reflect.DeepEqual(back.Items, want.Items) {
		t.Errorf("%+v: %v", back, err)
	}
	want.Items[0].Refused = 10
	if wire.DecodeMeasures(wire.AppendMeasures(nil, &want), &back) == nil {
		t.Error("more are refused than were decided")
	}
}

func TestDamagedMeasuresAreRefused(t *testing.T) {
	var back wire.Measures
	message := wire.AppendMeasures(nil, &measures)
	for i := range message {
		if wire.DecodeMeasures(message[:i], &back) == nil {
			t.Errorf("cut at %d it was accepted", i)
		}
	}
	of := func(m wire.Measure) wire.Measures { return wire.Measures{Items: []wire.Measure{m}} }
	a := []byte("a")
	for name, m := range map[string]wire.Measures{
		"too long a name":    {Node: make([]byte, wire.MaxNodeID+1)},
		"too long a time":    {Covers: wire.MaxCovers + quota.Millisecond},
		"too many":           {Items: make([]wire.Measure, wire.MaxMeasures+1)},
		"no policy":          of(wire.Measure{Used: 1}),
		"too long a policy":  of(wire.Measure{Policy: bytes.Repeat(a, 64)}),
		"too much in flight": of(wire.Measure{Policy: a, Busy: 1<<45 + 1}),
		"too much used":      of(wire.Measure{Policy: a, Used: 1001}),
	} {
		if wire.DecodeMeasures(wire.AppendMeasures(nil, &m), &back) == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	if wire.DecodeMeasures([]byte("WRMS\x01\x01n\x00\x01\x01a\x0d"+string(make([]byte, 13))), &back) == nil {
		t.Error("more numbers than there may be: accepted")
	}
}

// The largest message fits into the bound, so that a node never makes one that is refused.
func TestTheLargestMeasuresFit(t *testing.T) {
	m := wire.Measures{Node: make([]byte, wire.MaxNodeID), Covers: wire.MaxCovers}
	for range wire.MaxMeasures {
		m.Items = append(m.Items, wire.Measure{Policy: bytes.Repeat([]byte("a"), 63),
			CandidateRefused: 1 << 40, ShadowRefused: 1 << 40, Busy: 1 << 45, Used: 1000})
	}
	var back wire.Measures
	message := wire.AppendMeasures(nil, &m)
	if err := wire.DecodeMeasures(message, &back); err != nil || !reflect.DeepEqual(back, m) {
		t.Errorf("%d bytes: %v", len(message), err)
	}
	if wire.DecodeMeasures(make([]byte, wire.MaxMeasuresBytes+1), &back) != wire.ErrTooLarge {
		t.Error("a larger message is read")
	}
}

func FuzzMeasures(f *testing.F) {
	f.Add(wire.AppendMeasures(nil, &measures))
	f.Fuzz(func(t *testing.T, b []byte) {
		var m, again wire.Measures
		if wire.DecodeMeasures(b, &m) != nil {
			return
		}
		err := wire.DecodeMeasures(wire.AppendMeasures(nil, &m), &again)
		if err != nil || !reflect.DeepEqual(m, again) {
			t.Errorf("%+v is read as %+v: %v", m, again, err)
		}
	})
}
