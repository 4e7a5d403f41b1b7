package leases_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/weir-proxy/weir/controlplane/internal/grant/leases"
	"github.com/weir-proxy/weir/shared/wire"
)

// Grants and refusals of a candidate are not counted as use of its policy.
func TestCandidatesAreNotMetered(t *testing.T) {
	w := newWorld(t)
	w.put(1, `name: p, partition: [], limit: {quota: 10, window: 1h}, candidate: {limit: {quota: 3, window: 1h}}`)
	w.current = 1
	var uses []string
	config := w.config(time.Now)
	config.Meter = func(u leases.Use) { uses = append(uses, fmt.Sprint(u.Policy.Name, u.Tokens, u.Granted, u.Refused)) }
	reply, err := leases.New(config).Grant(t.Context(), wire.LeaseRequest{Version: 1, Items: []wire.LeaseItem{
		item(1, 0, 2, 0), item(2, 1, 3, 0),
	}})
	if err != nil || reply.Items[0].Waiting != 2 || reply.Items[1].Waiting != 3 {
		t.Fatalf("%+v: %v", reply.Items, err)
	}
	if got := fmt.Sprint(uses); got != "[p2 2 0]" {
		t.Errorf("metered: %s", got)
	}
}
