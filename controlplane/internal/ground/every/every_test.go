package every_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-proxy/weir/controlplane/internal/ground/every"
)

func TestPeriod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 35*time.Second)
		defer cancel()
		begin, calls := time.Now(), 0
		every.Period(ctx, 10*time.Second, func(context.Context) { calls++ })
		if took := time.Since(begin); calls != 3 || took != 35*time.Second {
			t.Errorf("%d calls in %v, want 3 in 35s", calls, took)
		}
	})
}
