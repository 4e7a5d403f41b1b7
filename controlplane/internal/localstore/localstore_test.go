package localstore_test

import (
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/weir-proxy/weir/controlplane/internal/localstore"
	"github.com/weir-proxy/weir/controlplane/internal/storetest"
	"github.com/weir-proxy/weir/shared/quota"
)

// wall is a clock that the test sets.
type wall struct {
	mu  sync.Mutex
	now time.Time
}

func (w *wall) read() time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.now
}

func (w *wall) set(now quota.Instant) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.now = time.UnixMicro(int64(now))
}

func (w *wall) add(d time.Duration) { w.set(quota.Instant(w.read().Add(d).UnixMicro())) }

func newWall() *wall { return &wall{now: time.UnixMicro(int64(storetest.Base))} }

func open(t *testing.T, dir string, o localstore.Options) *localstore.Store {
	t.Helper()
	o.SaveByHand = true
	s, err := localstore.Open(dir, slog.New(slog.DiscardHandler), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func TestConformance(t *testing.T) {
	storetest.Run(t, func(t *testing.T) *storetest.Instance {
		dir, clock := t.TempDir(), newWall()
		s := open(t, dir, localstore.Options{Now: clock.read})
		in := &storetest.Instance{Store: s, SetClock: clock.set, Age: func(_ *testing.T, by time.Duration) { clock.add(by) }}
		in.Restart = func(t *testing.T) {
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			s = open(t, dir, localstore.Options{Now: clock.read})
			in.Store = s
		}
		return in
	})
}
