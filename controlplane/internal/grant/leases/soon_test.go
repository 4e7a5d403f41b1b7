package leases_test

import (
	"testing"
	"time"

	"github.com/weir-proxy/weir/controlplane/internal/grant/leases"
	"github.com/weir-proxy/weir/shared/lease"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/wire"
)

// Tokens that a node uses soon or not at all count as leased for no longer. Tokens for use within a
// shorter time count for less.
func TestTokensToUseSoon(t *testing.T) {
	for _, c := range []struct {
		soon       bool
		span, want quota.Span
	}{
		{soon: false, span: lease.Deadline, want: lease.Deadline},
		{soon: true, span: lease.Deadline, want: lease.Soon},
		{soon: true, span: quota.Millisecond, want: quota.Millisecond},
	} {
		w := newWorld(t)
		w.put(1, leased, strict)
		w.current = 1
		s := leases.New(w.config(time.Now))
		one := item(1, 0, 1, 0)
		one.Soon = c.soon
		request := wire.LeaseRequest{Version: 1, Items: []wire.LeaseItem{one}}
		if _, err := s.GrantFor(t.Context(), request, c.span); err != nil {
			t.Fatal(err)
		}
		if got := w.asked[0][0].Ask.Deadline; got != c.want {
			t.Errorf("%+v: tokens count as leased for %d µs", c, got)
		}
	}
}
