package dialect_test

import (
	"testing"

	"github.com/weir-proxy/weir/shared/dialect"
	"github.com/weir-proxy/weir/shared/quota"
)

func TestEnvoyLimit(t *testing.T) {
	items := []dialect.Item{
		{Name: []byte("per-ip"), Burst: 10, Window: quota.Second},
		{Name: []byte("daily"), Burst: 1000, Window: quota.Hour},
	}
	want := `10, 10;w=1;name="per-ip", 1000;w=3600;name="daily"`
	if got := string(dialect.AppendEnvoyLimit(nil, 10, items)); got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

func TestSeconds(t *testing.T) {
	for span, want := range map[quota.Span]string{0: "0.000", 1: "0.001", 666_667: "0.667", 36 * quota.Second: "36.000",
		61_050_000: "61.050"} {
		if got := string(dialect.AppendSeconds(nil, span)); got != want {
			t.Errorf("%d: %s, want %s", span, got, want)
		}
	}
}

func TestLeastRemaining(t *testing.T) {
	for value, want := range map[string]int64{
		`"a";r=5`: 5, `"a";r=5;t=3,"b";r=2`: 2, `"a";t=3;r=0`: 0, `"a;r=1";r=7`: 7,
		"": -1, `"a"`: -1, `"a";r=`: -1, `"a";r=-1`: -1, `"a";r=9999999999999999`: -1, `;r`: -1,
	} {
		got, ok := dialect.LeastRemaining([]byte(value))
		if !ok {
			got = -1
		}
		if got != want {
			t.Errorf("%q: %d, want %d", value, got, want)
		}
	}
}
