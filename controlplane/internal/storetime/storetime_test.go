package storetime_test

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-proxy/weir/controlplane/internal/storetime"
)

// The time is the store's whatever this machine's clock says, and goes on while the store is away;
// the log says once that the clock is wrong, and once that it is right again.
func TestTheTimeIsTheStores(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log strings.Builder
		off, away := time.Duration(0), false
		wall := func() time.Time { return time.Now().Add(off) }
		c := storetime.New(wall, func(context.Context) (time.Time, error) {
			time.Sleep(20 * time.Millisecond)
			there := time.Now()
			time.Sleep(20 * time.Millisecond)
			if away {
				return time.Time{}, errors.New("away")
			}
			return there, nil
		}, slog.New(slog.NewTextHandler(&log, nil)))
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
			c.Measure(t.Context())
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

// The clocks are compared all the time, and a clock that is set right counts as right again.
func TestTheClocksAreComparedAllTheTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		off := -time.Hour
		c := storetime.New(func() time.Time { return time.Now().Add(off) },
			func(context.Context) (time.Time, error) { return time.Now(), nil }, slog.New(slog.DiscardHandler))
		ctx, stop := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { c.Run(ctx) })
		time.Sleep(6 * time.Second)
		if c.Warning() == "" || time.Until(c.Now()).Abs() > time.Second {
			t.Errorf("%s, %v", c.Warning(), c.Now())
		}
		stop()
		running.Wait()
		off = 0
		c.Measure(t.Context())
		if c.Warning() != "" || !c.Now().Equal(time.Now()) {
			t.Errorf("%s, %v", c.Warning(), c.Now())
		}
		alone := storetime.New(time.Now, nil, slog.New(slog.DiscardHandler))
		alone.Measure(t.Context())
		if _, known := alone.Ahead(); known || !alone.Now().Equal(time.Now()) {
			t.Error("without a store's clock the machine's is it")
		}
	})
}
