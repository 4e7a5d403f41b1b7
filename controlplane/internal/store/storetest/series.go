package storetest

import (
	"maps"
	"testing"

	"github.com/weir-proxy/weir/controlplane/internal/observe/series"
)

func testSeries(t *testing.T, s *Instance) {
	ctx := testContext(t)
	one, other := series.Slot{Kind: series.Fine, Number: 7e8}, series.Slot{Kind: series.Coarse, Number: 7e8}
	slots := []series.Slot{one, other, {Kind: series.Fine, Number: 7e8 - 1}}
	type puts []map[string]string
	see := func(want puts) {
		t.Helper()
		got := must[[]map[string][]byte](t)(s.Slots(ctx, slots))
		if len(got) != len(want) {
			t.Fatalf("%d slots, want %d", len(got), len(want))
		}
		for i := range got {
			text := map[string]string{}
			for replica, put := range got[i] {
				text[replica] = string(put)
			}
			if !maps.Equal(text, want[i]) {
				t.Errorf("slot %d has %q, want %q", i, text, want[i])
			}
		}
	}
	see(puts{nil, nil, nil})
	must1(t, s.PutSlot(ctx, one, "a", []byte("1")))
	must1(t, s.PutSlot(ctx, one, "b", []byte("2\x00")))
	must1(t, s.PutSlot(ctx, other, "a", []byte("3")))
	see(puts{{"a": "1", "b": "2\x00"}, {"a": "3"}, nil})
	must1(t, s.PutSlot(ctx, one, "a", []byte("4")))
	see(puts{{"a": "4", "b": "2\x00"}, {"a": "3"}, nil})
}
