package regions

import (
	"testing"

	"github.com/weir-proxy/weir/shared/inflight"
	"github.com/weir-proxy/weir/shared/policy"
)

// A part of requests in flight is with others only after the permits of the former one have ended.
func TestAPartLastsAsLongAsItsPermits(t *testing.T) {
	l, err := policy.NewInFlight(20, 0, 0)
	if err != nil {
		t.Fatal(err)
	}
	part := Part{Rate: Whole / 4, Burst: Whole / 2}
	if got := part.Grace(&policy.Policy{Limits: []policy.Limit{l}}); got < inflight.TTL {
		t.Errorf("it lasts %v of %v", got, inflight.TTL)
	}
	if got := part.Of(l).Params.Burst; got != 10 {
		t.Errorf("half of 20 permits are %d", got)
	}
}
