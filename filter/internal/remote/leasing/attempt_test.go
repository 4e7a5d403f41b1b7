package leasing

import (
	"testing"

	"github.com/weir-proxy/weir/filter/internal/base/bucketstore"
	"github.com/weir-proxy/weir/shared/lease"
	"github.com/weir-proxy/weir/shared/quota"
)

// A change that is applied again, because another worker was faster, leaves nothing of the attempt
// before: tokens that the other worker has taken do not go back, and are not said to be used twice.
func TestAnAttemptBeforeLeavesNothing(t *testing.T) {
	p, err := quota.NewParams(100, quota.Minute, 100)
	if err != nil {
		t.Fatal(err)
	}
	const now = quota.Instant(quota.Hour)
	full := func() *bucketstore.Entry {
		e, held := &bucketstore.Entry{}, lease.Lease{Tokens: 9, Expiry: now + quota.Instant(quota.Second), Term: 7}
		e.Credit = e.Credit.Receive(now, held)
		e.Credit, _, _ = e.Credit.Spend(now, p, 3)
		return e
	}
	need := Need{Params: p, Cost: 5}
	out := &takeOut{need: &need, now: now, all: true}
	if out.Apply(full()); out.out[0].Tokens != 6 || out.out[0].Used != 3 {
		t.Fatalf("%+v", out.out)
	}
	if stored := out.Apply(&bucketstore.Entry{}); stored || out.out != ([2]lease.Lease{}) {
		t.Errorf("of an empty credit: %+v", out.out)
	}
	s := &Spend{Need: need, Now: now, Charge: true}
	if s.Apply(full()); s.State != Ready || s.From.Term != 7 {
		t.Fatalf("%+v", s)
	}
	s.Spent[0].Tokens = 3
	if s.Apply(&bucketstore.Entry{}); s.State != Missing || s.From != (lease.Lease{}) || s.Spent[0].Tokens != 0 {
		t.Errorf("of an empty credit: %+v", s)
	}
}
