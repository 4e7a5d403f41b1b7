package leases_test

import (
	"testing"
	"time"

	"github.com/weir-proxy/weir/controlplane/internal/grant/leases"
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/lease"
	"github.com/weir-proxy/weir/shared/wire"
)

// An answer names the term of its grant. By this term tokens go back, under an older version too,
// and are counted. Tokens of a limit that is not known or not leased do not go back.
func TestTokensGoBack(t *testing.T) {
	w := newWorld(t)
	w.put(1, leased, strict, local)
	w.put(2, leased, strict, local)
	w.current = 1
	var back int64
	config := w.config(func() time.Time { return time.Unix(0, 0) })
	config.Meter = func(u leases.Use) { back += u.Returned }
	service := leases.New(config)
	ask := func(version uint64, items ...wire.LeaseItem) []wire.LeaseAnswer {
		t.Helper()
		reply, err := service.Grant(t.Context(), wire.LeaseRequest{Version: version, Items: items})
		if err != nil {
			t.Fatal(err)
		}
		return reply.Items
	}
	lent := ask(1, item(1, 0, 1, 10))[0]
	if lent.Keep != 6 || lent.Term == 0 || lent.Level != 93 {
		t.Fatalf("%+v", lent)
	}
	returns := func(limit uint32, name uint64, n int64) wire.LeaseItem {
		return wire.LeaseItem{Kind: wire.KindReturn, Bucket: keyhash.Key{1}, Limit: limit, Reserved: name,
			Term: lent.Term, Returned: n, Used: 1}
	}
	w.current = 2
	got := ask(1, returns(0, 5, 6), returns(2, 6, 1), returns(9, 7, 1), item(1, 0, 0, 0))
	for i, want := range []wire.ItemState{wire.ItemGranted, wire.ItemUnknown, wire.ItemUnknown, wire.ItemGranted} {
		if got[i].State != want {
			t.Errorf("item %d: %+v, want %d", i, got[i], want)
		}
	}
	asked := w.asked[len(w.asked)-1][0].Returns
	if want := (leases.Return{Name: 5, Term: lent.Term, Back: lease.Back{Unused: 6, Used: 1}}); asked != want {
		t.Errorf("asked %+v, want %+v", asked, want)
	}
	if got[3].Level != 99 || back != 6 {
		t.Errorf("%d are left, %d are counted", got[3].Level, back)
	}
}
