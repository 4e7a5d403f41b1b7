package access_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/weir-proxy/weir/controlplane/internal/access"
)

func rates(t *testing.T, rate, burst int64, most int) (*access.Rates, *time.Time) {
	t.Helper()
	now := time.Unix(1_000_000, 0)
	rates, err := access.NewRates(rate, burst, most, func() time.Time { return now })
	if err != nil {
		t.Fatal(err)
	}
	return rates, &now
}

func TestEachKeyHasABucket(t *testing.T) {
	bounds, now := rates(t, 2, 3, 10)
	for i := range 3 {
		if _, ok := bounds.Take("a"); !ok {
			t.Errorf("the first three pass, not number %d", i)
		}
	}
	if wait, ok := bounds.Take("a"); ok || wait != 500*time.Millisecond {
		t.Errorf("the fourth waits for half a second: %v, %v", wait, ok)
	}
	if _, ok := bounds.Take("b"); !ok {
		t.Error("another key waits")
	}
	*now = now.Add(500 * time.Millisecond)
	if _, ok := bounds.Take("a"); !ok {
		t.Error("after the wait it does not pass")
	}
	if _, ok := bounds.Take("a"); ok {
		t.Error("two pass for one wait")
	}
}

// However many keys come, only the maximum number is remembered, and it is the used keys that are.
func TestKeysAreBounded(t *testing.T) {
	bounds, _ := rates(t, 1, 1, 3)
	bounds.Take("busy")
	for i := range 1000 {
		if _, ok := bounds.Take("busy"); ok {
			t.Fatalf("after %d others the busy key is forgotten", i)
		}
		bounds.Take(fmt.Sprint(i))
	}
	if _, ok := bounds.Take("999"); ok {
		t.Error("the last key is forgotten")
	}
	if _, ok := bounds.Take("0"); !ok {
		t.Error("the first key is remembered: the number of keys is not bounded")
	}
}

func TestNoTableIsNoBound(t *testing.T) {
	var none *access.Rates
	if wait, ok := none.Take("a"); wait != 0 || !ok {
		t.Errorf("%v, %v", wait, ok)
	}
	if _, err := access.NewRates(0, 1, 1, time.Now); err == nil {
		t.Error("a rate of 0 is taken")
	}
}
