package localstore_test

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/weir-proxy/weir/controlplane/internal/grant/leases"
	"github.com/weir-proxy/weir/controlplane/internal/ground/audit"
	"github.com/weir-proxy/weir/controlplane/internal/rules/enforcement"
	"github.com/weir-proxy/weir/controlplane/internal/rules/policies"
	"github.com/weir-proxy/weir/controlplane/internal/store/localstore"
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/lease"
)

// A disk that hangs holds up no grant, also of a bucket that a person resets meanwhile; every
// change is answered with the reason within some seconds; the store says that it cannot save, and
// that it can again.
func TestADiskThatHangs(t *testing.T) {
	s := open(t, t.TempDir(), localstore.Options{})
	limit := perHour(t, 1000)
	one(t, s, 1, limit, 1)
	release := s.Hang()
	ask := lease.Ask{Params: limit, Version: 1, Cost: 1, Nodes: 1}
	changes := map[string]func(context.Context) error{
		"the counters": func(context.Context) error { return s.Save() },
		"a reset": func(ctx context.Context) error {
			_, err := s.Adjust(ctx, leases.Item{Bucket: keyhash.Key{1}, Ask: ask}, lease.Change{Reset: true},
				audit.Entry{Action: "keys.reset"})
			return err
		},
		"a policy set": func(ctx context.Context) error {
			return s.Append(ctx, 0, policies.Version{Number: 1, Digest: "x", Document: []byte("x")}, audit.Entry{})
		},
		"an order": func(ctx context.Context) error {
			return enforcement.Kept{In: s}.WriteEnforcement(ctx, enforcement.Write{})
		},
	}
	answers := make(chan error, len(changes))
	for what, change := range changes {
		go func() {
			begin := time.Now()
			err := change(context.Background())
			if err == nil || !strings.Contains(err.Error(), "disk") {
				t.Errorf("%s: %v", what, err)
			}
			t.Logf("%s: %v after %v", what, err, time.Since(begin))
			answers <- err
		}()
	}
	for range 50 {
		begin := time.Now()
		if g := one(t, s, 1, limit, 1); g.Waiting != 1 {
			t.Fatalf("granted %+v", g)
		}
		if took := time.Since(begin); took > time.Second {
			t.Fatalf("a grant took %v", took)
		}
		time.Sleep(10 * time.Millisecond)
	}
	for range changes {
		select {
		case <-answers:
		case <-time.After(20 * time.Second):
			t.Fatal("changes are not answered")
		}
	}
	if _, err := s.Saved(); err == nil {
		t.Error("the store says that it can save")
	}
	release()
	save(t, s)
	if _, err := s.Saved(); err != nil {
		t.Errorf("the disk answers again, and the store says %v", err)
	}
}

// A change that has begun may be made after its caller has been refused. The refusal says so.
func TestAChangeThatHasBegunMayStillBeMade(t *testing.T) {
	s := open(t, t.TempDir(), localstore.Options{})
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	release := make(chan struct{})
	err := s.HangWithin(ctx, release)
	if err == nil || !strings.Contains(err.Error(), "may still make the change") {
		t.Errorf("the caller hears %v", err)
	}
	if s.HasLate() {
		t.Error("the change is made already")
	}
	close(release)
	save(t, s)
	if !s.HasLate() {
		t.Error("the change is not made")
	}
}

// The process ends though its disk hangs.
func TestAStoreEndsThoughItsDiskHangs(t *testing.T) {
	s, err := localstore.Open(t.TempDir(), slog.New(slog.DiscardHandler), localstore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	release := s.Hang()
	defer release()
	ended := make(chan error, 1)
	go func() { ended <- s.Close() }()
	select {
	case err := <-ended:
		if err == nil {
			t.Error("it says that everything is saved")
		}
	case <-time.After(20 * time.Second):
		t.Error("it does not end")
	}
}
