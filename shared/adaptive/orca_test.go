package adaptive_test

import (
	"math"
	"testing"

	"github.com/weir-proxy/weir/shared/adaptive"
)

func TestUtilisation(t *testing.T) {
	for _, c := range []struct {
		header string
		want   float64
		ok     bool
	}{
		{"TEXT cpu_utilization=0.3,mem_utilization=0.8,application_utilization=0.7,rps_fractional=10.0", 0.7, true},
		{"TEXT cpu_utilization=0.3, application_utilization=0", 0.3, true},
		{"TEXT application_utilization=0", 0, true},
		{"TEXT cpu_utilization=1.25", 1.25, true},
		{"TEXT cpu_utilization=7.5e-06", 0, true},
		{`JSON {"cpu_utilization": 0.3, "application_utilization":0.95}`, 0.95, true},
		{`JSON {"rps_fractional":1,"cpu_utilization" : 1}`, 1, true},
		{"TEXT named_metrics.cpu_utilization=0.9", 0, false},
		{"TEXT mem_utilization=0.9", 0, false},
		{"TEXT cpu_utilization=", 0, false},
		{"TEXT cpu_utilization=-1", 0, false},
		{"BIN ChFjcHU=", 0, false},
		{"cpu_utilization=0.9", 0, false},
		{"", 0, false},
	} {
		got, ok := adaptive.Utilisation([]byte(c.header))
		if math.Abs(got-c.want) > 1e-9 || ok != c.ok {
			t.Errorf("%s: %v %v, want %v %v", c.header, got, ok, c.want, c.ok)
		}
	}
}

// No header makes a report that is no number, or below 0.
func FuzzUtilisation(f *testing.F) {
	f.Add([]byte("TEXT cpu_utilization=0.3,application_utilization=7e-1"))
	f.Add([]byte(`JSON {"cpu_utilization": 1e-999}`))
	f.Fuzz(func(t *testing.T, header []byte) {
		var r adaptive.Reports
		used, ok := adaptive.Utilisation(header)
		if r.Add(used); !ok && used != 0 || ok && r.Count != 1 || r.Sum > 10e6 {
			t.Errorf("%q: %v, %v, %+v", header, used, ok, r)
		}
	})
}
