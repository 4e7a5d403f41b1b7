package leases_test

import (
	"testing"
	"time"

	"github.com/weir-proxy/weir/controlplane/internal/grant/leases"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/wire"
)

// Tokens that are taken for a time count as leased for that time. As many are granted as the bucket
// has, and no request counts as answered by them.
func TestTokensForATime(t *testing.T) {
	w := newWorld(t)
	w.put(1, leased, strict)
	w.current = 1
	config := w.config(time.Now)
	var uses []leases.Use
	config.Meter = func(u leases.Use) { uses = append(uses, u) }
	s := leases.New(config)
	request := wire.LeaseRequest{Version: 1, Items: []wire.LeaseItem{item(1, 0, 70, 0), item(2, 1, 120, 0)}}
	reply, err := s.GrantFor(t.Context(), request, 3*quota.Second)
	if err != nil || reply.Items[0].Waiting != 70 || reply.Items[1].Waiting != 100 {
		t.Errorf("%+v, %v", reply, err)
	}
	for _, asked := range w.asked[0] {
		if asked.Ask.Deadline != 3*quota.Second {
			t.Errorf("tokens count as leased for %d µs", asked.Ask.Deadline)
		}
	}
	if len(uses) != 2 || uses[0].Tokens != 70 || uses[0].Granted+uses[1].Granted+uses[1].Refused != 0 {
		t.Errorf("%+v", uses)
	}
}
