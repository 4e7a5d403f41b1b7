package storetime_test

import (
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-proxy/weir/controlplane/internal/ground/storetime"
)

// The time is the store's whatever this machine's clock says, and goes on while the store is away;
// the log says once that the clock is wrong, and once that it is right again.
func TestTheTimeIsTheStores(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log strings.Builder
		off, away := time.Duration(0), false
		wall := func() time.Time { return time.Now().Add(off) }
		c := storetime.New(wall, slog.New(slog.NewTextHandler(&log, nil)))
		ask := func() time.Time {
			time.Sleep(20 * time.Millisecond)
			there := time.Now()
			time.Sleep(20 * time.Millisecond)
			if away {
				return time.Time{}
			}
			return there
		}
		if _, known := c.Ahead(); known || c.Warning() != "" {
			t.Error("known before the store has said")
		}
		for _, step := range []struct {
			off     time.Duration
			away    bool
			warning string
		}{
			{off: 0}, {off: 900 * time.Millisecond},
			{off: time.Hour, warning: "1h0m0s ahead of"}, {off: time.Hour, away: true, warning: "1h0m0s ahead of"},
			{off: -time.Hour, warning: "1h0m0s behind"}, {off: -2 * time.Second, warning: "2s behind"}, {off: 0},
		} {
			off, away = step.off, step.away
			c.Measure(ask)
			got := time.Until(c.Now()).Abs()
			if got > time.Second {
				t.Errorf("%v: the time is %v off", step, got)
			}
			if w := c.Warning(); (w == "") != (step.warning == "") || !strings.Contains(w, step.warning) {
				t.Errorf("%v: %s", step, w)
			}
			if ahead, known := c.Ahead(); !known || !step.away && (ahead-step.off).Abs() > time.Millisecond {
				t.Errorf("%v: ahead %v", step, ahead)
			}
		}
		if n := strings.Count(log.String(), "level=WARN"); n != 3 {
			t.Errorf("%d warnings: %s", n, log.String())
		}
		if !strings.Contains(log.String(), "right again") {
			t.Error(log.String())
		}
	})
}

// A store that takes long, or has no clock, says nothing: the machine's is it.
func TestALateTimeSaysNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := storetime.New(time.Now, slog.New(slog.DiscardHandler))
		c.Measure(func() time.Time { return time.Time{} })
		c.Measure(func() time.Time {
			time.Sleep(2 * time.Second)
			return time.Now().Add(time.Hour)
		})
		if _, known := c.Ahead(); known || !c.Now().Equal(time.Now()) {
			t.Errorf("%v", c.Now())
		}
	})
}
