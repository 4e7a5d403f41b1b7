package leases_test

import (
	"math/rand/v2"
	"reflect"
	"testing"
	"time"

	"github.com/weir-proxy/weir/controlplane/internal/grant/leases"
	"github.com/weir-proxy/weir/shared/wire"
)

// The clock of the control plane may jump as it likes: grants use the clock of the store. The
// control plane's clock only measures how long it leaves alone a store that does not answer. In
// production no operator sets that clock.
func TestTheClockOfTheControlPlaneDecidesNothing(t *testing.T) {
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 0))
	standing, jumping := newWorld(t), newWorld(t)
	for _, w := range []*world{standing, jumping} {
		w.put(1, leased, strict)
		w.current = 1
	}
	clock := func() time.Time { return time.Unix(1_800_000_000+r.Int64N(7200)-3600, 0) }
	one, other := standing.service(), leases.New(jumping.config(clock))
	granted := int64(0)
	for i := range uint64(200) {
		limit := uint32(r.IntN(2))
		request := wire.LeaseRequest{Seq: i, Version: 1,
			Items: []wire.LeaseItem{item(byte(limit), limit, r.Int64N(3), r.Int64N(3))}}
		want, err := one.Grant(t.Context(), request)
		if err != nil {
			t.Fatal(err)
		}
		got, err := other.Grant(t.Context(), request)
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Fatalf("seed %d: with a clock that jumps %+v, %v; with one that stands %+v", seed, got, err, want)
		}
		granted += got.Items[0].Waiting
	}
	if granted == 0 {
		t.Error("nothing was granted")
	}
}
