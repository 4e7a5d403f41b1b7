package leases_test

import (
	"fmt"
	"testing"

	"github.com/weir-proxy/weir/controlplane/internal/grant/leases"
	"github.com/weir-proxy/weir/shared/inflight"
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/lease"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/wire"
)

// A control plane that meets more holders than its maximum knows that it does not know all, until
// the holders that it has left out are over. It keeps the remembered holders up to date.
func TestLentIsBounded(t *testing.T) {
	const most = 100
	l := &leases.Lent{Most: most}
	now := quota.Instant(quota.Hour)
	note := func(node int, seq uint64, permits int64) {
		l.Note([]leases.Item{{Bucket: keyhash.Key{1}, Kind: wire.KindClaim, Claim: inflight.Claim{
			Node: inflight.Node{ID: fmt.Sprint(node)}, Seq: seq, Limit: 10,
		}}}, []lease.Grant{{Keep: permits, FullAfter: inflight.TTL}}, now)
	}
	claims := func() []leases.Claim { return l.Claims(now, func(keyhash.Key) bool { return true }) }
	for node := range most {
		note(node, 1, 1)
	}
	if got := l.KnownIn(now); got != leases.GivenBackIn || len(claims()) != most {
		t.Fatalf("%d of %d claims, all is known in %d", len(claims()), most, got)
	}
	now++
	note(0, 2, 5)
	if c := claims(); c[0].Item.Claim.Hold != 5 || len(c) != most {
		t.Errorf("%+v, want the first node's last answer", c[0])
	}
	for node := range 1000 {
		note(most+node, 1, 1)
	}
	if got := l.KnownIn(now); got != inflight.RenewedIn || len(claims()) != most {
		t.Errorf("%d claims, all is known in %d, want %d and %d", len(claims()), got, most, inflight.RenewedIn)
	}
	now += quota.Instant(inflight.TTL)
	if got := l.KnownIn(now); got != leases.GivenBackIn {
		t.Errorf("all is known in %d once the permits are over that were left out", got)
	}
	for range 10 { // In the worst case both spans are full.
		for node := range most {
			note(node, 3, 1)
		}
		now += quota.Instant(inflight.TTL)
	}
	if got := len(claims()); got > 2*most {
		t.Errorf("%d claims are remembered", got)
	}
}
