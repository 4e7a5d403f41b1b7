package leasing_test

import (
	"testing"

	"github.com/weir-proxy/weir/filter/internal/leasing"
	"github.com/weir-proxy/weir/filter/internal/shareddatatest"
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/lease"
	"github.com/weir-proxy/weir/shared/quota"
)

// A key that is asked for once, and is over its limit, costs one call: until its time all workers
// of the process refuse it by what the answer said, in strict mode too. Then one of them asks
// again.
func TestAllWorkersKnowARefusal(t *testing.T) {
	p, err := quota.NewParams(100, quota.Minute, 100)
	if err != nil {
		t.Fatal(err)
	}
	for _, strict := range []bool{false, true} {
		data, c := &shareddatatest.Data{}, &clock{now: 1000 * ms}
		cp := &plane{t: t, params: p, ledgers: map[keyhash.Key]lease.Ledger{}}
		a, b := worker(t, data, c, cp), worker(t, data, c, cp)
		need := a.need(1, 1)
		need.Strict = strict
		ticket := &leasing.Ticket{Stream: 1, Need: need}
		a.client.Ask(c.now, ticket)
		a.client.Flush(c.now)
		a.reply(short)
		if ticket.Outcome != leasing.Refused {
			t.Fatalf("the first request: %v", ticket.Outcome)
		}
		until := c.now + 7000*ms
		for ; c.now < until; c.now += 100 * ms {
			for _, w := range []*world{a, b} {
				if s := w.spend(1, 1); s.State != leasing.Exhausted || s.Until != until {
					t.Fatalf("strict %v, %d ms before its time: %v until %d", strict, (until-c.now)/ms, s.State,
						s.Until)
				}
			}
		}
		if s := b.spend(1, 1); s.State != leasing.Missing {
			t.Errorf("strict %v, when its time has come: %v", strict, s.State)
		}
	}
}
