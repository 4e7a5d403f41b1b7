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

// All numbers of a measure are read back as they were written.
func TestAllMeasuresReadBack(t *testing.T) {
	want := wire.Measures{Items: []wire.Measure{{Policy: []byte("a"), CandidateRefused: 1, ShadowRefused: 2, Busy: 3,
		Used: 4, CandidateUndetermined: 5, ShadowUndetermined: 6, Decided: 9, Refused: 8, Unsure: 7, Waited: 10,
		Held: 11, Version: 12}}}
	back, err := wire.DecodeReport(wire.AppendReport(nil, &wire.Report{Measures: &want}))
	if err != nil || !reflect.DeepEqual(back.Measures.Items, want.Items) {
		t.Errorf("%+v: %v", back.Measures, err)
	}
	want.Items[0].Refused = 10
	areRefused(t, map[string]wire.Report{"more refused than decided": {Measures: &want}})
}

func TestDamagedMeasuresAreRefused(t *testing.T) {
	of := func(m wire.Measure) wire.Measures { return wire.Measures{Items: []wire.Measure{m}} }
	a := []byte("a")
	for name, m := range map[string]wire.Measures{
		"too long a time":    {Covers: wire.MaxCovers + quota.Millisecond},
		"too many":           {Items: make([]wire.Measure, wire.MaxMeasures+1)},
		"no policy":          of(wire.Measure{Used: 1}),
		"too long a policy":  of(wire.Measure{Policy: bytes.Repeat(a, 64)}),
		"too much in flight": of(wire.Measure{Policy: a, Busy: 1<<45 + 1}),
		"too much used":      of(wire.Measure{Policy: a, Used: 1001}),
	} {
		areRefused(t, map[string]wire.Report{name: {Measures: &m}})
	}
	one := of(wire.Measure{Policy: a, Decided: 1, Version: 1})
	message := wire.AppendReport(nil, &wire.Report{Measures: &one})
	message[len(message)-13]++
	if _, err := wire.DecodeReport(append(message, 0)); err != wire.ErrValue {
		t.Errorf("more numbers than there may be: %v", err)
	}
}

func largestMeasures() *wire.Measures {
	m := wire.Measures{Covers: wire.MaxCovers}
	for range wire.MaxMeasures {
		m.Items = append(m.Items, wire.Measure{Policy: bytes.Repeat([]byte("a"), 63),
			CandidateRefused: 1 << 40, ShadowRefused: 1 << 40, Busy: 1 << 45, Used: 1000})
	}
	return &m
}
