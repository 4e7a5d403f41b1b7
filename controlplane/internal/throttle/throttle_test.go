package throttle_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/weir-proxy/weir/controlplane/internal/throttle"
)

func table(t *testing.T, rate, burst int64, most int) (*throttle.Table, *time.Time) {
	t.Helper()
	now := time.Unix(1_000_000, 0)
	table, err := throttle.New(rate, burst, most, func() time.Time { return now })
	if err != nil {
		t.Fatal(err)
	}
	return table, &now
}

func TestEachKeyHasABucket(t *testing.T) {
	bounds, now := table(t, 2, 3, 10)
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

// However many keys come, as many are remembered as may be, and it is the ones that are used that
// are.
func TestKeysAreBounded(t *testing.T) {
	bounds, _ := table(t, 1, 1, 3)
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
		t.Error("the first key is remembered: the table is not bounded")
	}
}

func TestNoTableIsNoBound(t *testing.T) {
	var none *throttle.Table
	if wait, ok := none.Take("a"); wait != 0 || !ok {
		t.Errorf("%v, %v", wait, ok)
	}
	if _, err := throttle.New(0, 1, 1, time.Now); err == nil {
		t.Error("a rate of 0 is taken")
	}
}
