package localstore_test

import (
	"bytes"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	bolt "go.etcd.io/bbolt"

	"github.com/weir-proxy/weir/controlplane/internal/fleet/nodes"
	"github.com/weir-proxy/weir/controlplane/internal/grant/leases"
	"github.com/weir-proxy/weir/controlplane/internal/store/localstore"
	"github.com/weir-proxy/weir/controlplane/internal/store/storetest"
	"github.com/weir-proxy/weir/shared/inflight"
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/lease"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/wire"
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
		in := &storetest.Instance{Store: s, SetClock: clock.set,
			Age: func(_ *testing.T, by time.Duration) { clock.add(by) }}
		in.Restart = func(t *testing.T) {
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			s = open(t, dir, localstore.Options{Now: clock.read})
			in.Store = s
		}
		in.Lose = func(t *testing.T, _ quota.Instant) {
			dir = crash(t, dir)
			s = open(t, dir, localstore.Options{Now: clock.read})
			in.Store = s
		}
		in.Doubt = inflight.RenewedIn
		return in
	})
}

// one asks for waiting tokens of one bucket.
func one(t *testing.T, s *localstore.Store, bucket byte, p quota.Params, waiting int64) lease.Grant {
	t.Helper()
	ask := lease.Ask{Params: p, Version: 1, Waiting: waiting, Cost: 1, Nodes: 1}
	grants, err := s.Grant(t.Context(), []leases.Item{{Bucket: keyhash.Key{bucket}, Ask: ask}})
	if err != nil {
		t.Fatal(err)
	}
	return grants[0]
}

func perHour(t *testing.T, q int64) quota.Params {
	t.Helper()
	p, err := quota.NewParams(q, quota.Hour, q)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// crash leaves the same as a killed process: a copy of the file as it was last saved.
func crash(t *testing.T, dir string) (copied string) {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(dir, "weir.db"))
	if err != nil {
		t.Fatal(err)
	}
	copied = t.TempDir()
	if err := os.WriteFile(filepath.Join(copied, "weir.db"), b, 0o600); err != nil {
		t.Fatal(err)
	}
	return copied
}

func save(t *testing.T, s *localstore.Store) {
	t.Helper()
	if err := s.Save(); err != nil {
		t.Fatal(err)
	}
}

// After a crash saved buckets are as they were saved, up to half full, others half full, until a
// bucket in use before would be full again.
func TestCrash(t *testing.T) {
	dir, clock := t.TempDir(), newWall()
	s := open(t, dir, localstore.Options{Now: clock.read})
	p := perHour(t, 100)
	one(t, s, 1, p, 90)
	save(t, s)
	one(t, s, 2, p, 90) // never saved
	clock.add(time.Second)

	dir = crash(t, dir)
	s = open(t, dir, localstore.Options{Now: clock.read})
	for _, c := range []struct {
		bucket byte
		asks   int64
		want   int64
	}{{1, 100, 10}, {2, 100, 50}, {3, 60, 50}, {3, 60, 0}} {
		if g := one(t, s, c.bucket, p, c.asks); g.Waiting != c.want {
			t.Errorf("bucket %d gives %d, want %d", c.bucket, g.Waiting, c.want)
		}
	}
	// An orderly restart does not end the doubt.
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = open(t, dir, localstore.Options{Now: clock.read})
	if g := one(t, s, 4, p, 100); g.Waiting != 50 {
		t.Errorf("a bucket after the next restart gives %d, want 50", g.Waiting)
	}
	clock.add(time.Hour + 2*time.Minute)
	if g := one(t, s, 5, p, 100); g.Waiting != 100 {
		t.Errorf("an hour later a bucket gives %d, want 100", g.Waiting)
	}
}

// A bucket that starts half full goes on from there: asking again and again does not start it anew.
func TestHalfFullIsRemembered(t *testing.T) {
	dir, clock := t.TempDir(), newWall()
	open(t, dir, localstore.Options{Now: clock.read})
	s := open(t, crash(t, dir), localstore.Options{Now: clock.read})
	p := perHour(t, 100)
	ask := lease.Ask{Params: p, Version: 1, Waiting: 1, Cost: 60, Nodes: 1}
	for _, want := range []quota.Span{10 * 36 * quota.Second, 9 * 36 * quota.Second} {
		grants, err := s.Grant(t.Context(), []leases.Item{{Bucket: keyhash.Key{1}, Ask: ask}})
		if err != nil || grants[0].NotBefore != want {
			t.Errorf("%+v, %v; want a wait of %d", grants, err, want)
		}
		clock.add(36 * time.Second)
	}
}

// The store's clock never runs backwards, whatever the wall clock does between two runs.
func TestClockOverRestarts(t *testing.T) {
	dir, clock := t.TempDir(), newWall()
	p := perHour(t, 3600)
	s := open(t, dir, localstore.Options{Now: clock.read})
	one(t, s, 1, p, 3600)
	clock.add(10 * time.Second)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		step time.Duration
		want int64
	}{{-time.Hour, 10}, {5 * time.Second, 0}} {
		clock.add(c.step)
		s = open(t, dir, localstore.Options{Now: clock.read})
		if g := one(t, s, 1, p, 3600); g.Waiting != c.want {
			t.Errorf("after a step of %v: %d tokens, want %d", c.step, g.Waiting, c.want)
		}
		clock.add(time.Second)
		if g := one(t, s, 1, p, 3600); g.Waiting != 1 {
			t.Errorf("a second later: %d tokens, want 1", g.Waiting)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

func TestForgettableBucketsAreForgotten(t *testing.T) {
	dir, clock := t.TempDir(), newWall()
	s := open(t, dir, localstore.Options{Now: clock.read, MaxBuckets: 64})
	p := perHour(t, 3600)
	one(t, s, 64, p, 1)
	save(t, s)
	if g := one(t, s, 128, p, 1); g.Waiting != 0 || g.NotBefore != quota.Second {
		t.Errorf("a bucket more than there is room for: %+v", g)
	}
	clock.add(2 * time.Second)
	for range 8 { // Each save looks through an eighth.
		save(t, s)
	}
	if g := one(t, s, 128, p, 1); g.Waiting != 1 {
		t.Errorf("when the first is full again there is room: %+v", g)
	}
}

// A full store says so, at most once a minute, and counts the buckets that it has no room for.
func TestAFullStoreSaysSo(t *testing.T) {
	var log bytes.Buffer
	clock := newWall()
	s, err := localstore.Open(t.TempDir(), slog.New(slog.NewTextHandler(&log, nil)),
		localstore.Options{Now: clock.read, MaxBuckets: 64, SaveByHand: true})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	p := perHour(t, 1)
	one(t, s, 64, p, 1)
	save(t, s)
	if s.Refused() != 0 || log.Len() > 0 {
		t.Fatalf("with room: %d refused, log %s", s.Refused(), &log)
	}
	for _, c := range []struct {
		at             time.Duration
		refused, lines int
	}{{0, 1, 1}, {time.Second, 2, 1}, {59 * time.Second, 3, 2}, {0, 4, 2}, {time.Hour, 5, 3}} {
		clock.add(c.at)
		one(t, s, 128, p, 1)
		save(t, s)
		if s.Refused() != int64(c.refused) || bytes.Count(log.Bytes(), []byte("level=WARN")) != c.lines {
			t.Errorf("after %v more: %d refused, want %d; want %d lines in the log\n%s", c.at, s.Refused(), c.refused,
				c.lines, &log)
		}
	}
	for _, want := range []string{"bound=64 refused=1", "bound=64 refused=2"} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("the log lacks %s: %s", want, &log)
		}
	}
}

// rewrite changes the saved buckets in the file of a store that is closed.
func rewrite(t *testing.T, dir string, change func(saved *bolt.Bucket) error) {
	t.Helper()
	db, err := bolt.Open(filepath.Join(dir, "weir.db"), 0o600, nil)
	if err != nil {
		t.Fatal(err)
	}
	err = db.Update(func(tx *bolt.Tx) error { return change(tx.Bucket([]byte("ledgers"))) })
	if err = errors.Join(err, db.Close()); err != nil {
		t.Fatal(err)
	}
}

func TestDamagedBucketIsHalfFull(t *testing.T) {
	dir, clock := t.TempDir(), newWall()
	s := open(t, dir, localstore.Options{Now: clock.read})
	p := perHour(t, 100)
	for bucket := byte(1); bucket <= 4; bucket++ {
		one(t, s, bucket, p, 90)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	rewrite(t, dir, func(saved *bolt.Bucket) error {
		good := append([]byte{}, saved.Get(key(1))...)
		return errors.Join(
			saved.Put(key(1), append([]byte{9}, good[1:]...)), // another format
			saved.Put(key(2), good[:len(good)-1]),
			saved.Put(key(3), append(good, 1)),
			saved.Put([]byte("short key"), good),
		)
	})
	s = open(t, dir, localstore.Options{Now: clock.read})
	for bucket, want := range map[byte]int64{1: 50, 2: 50, 3: 50, 4: 10, 5: 100} {
		if g := one(t, s, bucket, p, 100); g.Waiting != want {
			t.Errorf("bucket %d gives %d, want %d", bucket, g.Waiting, want)
		}
	}
}

// Permits that cannot be read are in doubt, and so are permits that may be beside them.
func TestDamagedPermitsAreDoubted(t *testing.T) {
	for name, damage := range map[string]func([]byte) []byte{
		"another format": func(b []byte) []byte { return append([]byte{9}, b[1:]...) },
		"cut off":        func(b []byte) []byte { return b[:len(b)-1] },
		"longer":         func(b []byte) []byte { return append(b, 1) },
		"whole":          func(b []byte) []byte { return b },
	} {
		dir, clock := t.TempDir(), newWall()
		s := open(t, dir, localstore.Options{Now: clock.read})
		claim := func(node string) int64 {
			c := inflight.Claim{Node: inflight.Node{ID: node, Boot: 7}, Seq: 1, Need: 3, Limit: 10, Nodes: 1}
			grants, err := s.Grant(t.Context(), []leases.Item{{Bucket: keyhash.Key{1}, Kind: wire.KindClaim, Claim: c}})
			if err != nil {
				t.Fatal(err)
			}
			return grants[0].Keep
		}
		claim("a")
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		rewrite(t, dir, func(saved *bolt.Bucket) error {
			at := append(key(1), 'p')
			return saved.Put(at, damage(append([]byte{}, saved.Get(at)...)))
		})
		s = open(t, dir, localstore.Options{Now: clock.read})
		want := int64(0)
		if name == "whole" {
			want = 3
		}
		if got := claim("b"); got != want {
			t.Errorf("%s: %d granted, want %d", name, got, want)
		}
		clock.add(time.Duration(inflight.TTL) * time.Microsecond)
		if got := claim("c"); got != 3 {
			t.Errorf("%s: a lease later %d are granted", name, got)
		}
	}
}

// Windows are saved too, apart from tokens. Windows that were lost or cannot be read start with
// half their quota.
func TestWindowsAreSaved(t *testing.T) {
	dir, clock := t.TempDir(), newWall()
	w, err := quota.NewWindows(quota.SlidingWindow, 100, quota.Hour, 10)
	if err != nil {
		t.Fatal(err)
	}
	ask := func(s *localstore.Store, bucket byte, waiting int64) int64 {
		t.Helper()
		a := lease.Ask{Params: perHour(t, 100), Windows: w, Version: 1, Waiting: waiting, Cost: 1, Nodes: 1}
		grants, err := s.Grant(t.Context(), []leases.Item{{Bucket: keyhash.Key{bucket}, Ask: a}})
		if err != nil {
			t.Fatal(err)
		}
		return grants[0].Waiting
	}
	s := open(t, dir, localstore.Options{Now: clock.read})
	one(t, s, 1, perHour(t, 100), 10)
	for bucket, waiting := range map[byte]int64{1: 40, 2: 90, 3: 90} {
		if got := ask(s, bucket, waiting); got != waiting {
			t.Fatalf("a new bucket gives %d of %d", got, waiting)
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	rewrite(t, dir, func(saved *bolt.Bucket) error {
		good := append([]byte{}, saved.Get(append(key(3), 'w'))...)
		return saved.Put(append(key(3), 'w'), good[:len(good)-1])
	})
	s = open(t, dir, localstore.Options{Now: clock.read})
	for bucket, want := range map[byte]int64{1: 60, 2: 10, 3: 50, 4: 100} {
		if got := ask(s, bucket, 100); got != want {
			t.Errorf("bucket %d gives %d, want %d", bucket, got, want)
		}
	}
	if g := one(t, s, 1, perHour(t, 100), 100); g.Waiting != 90 {
		t.Errorf("the bucket of tokens of the same hash gives %d, want 90", g.Waiting)
	}
	s = open(t, crash(t, dir), localstore.Options{Now: clock.read})
	if got := ask(s, 5, 100); got != 50 {
		t.Errorf("after a crash an unknown bucket gives %d, want 50", got)
	}
	clock.add(67 * time.Minute) // The window, a part of it and the leases.
	if got := ask(s, 6, 100); got != 100 {
		t.Errorf("when none can count any more a bucket gives %d, want 100", got)
	}
	for range 8 {
		save(t, s)
	}
}

func key(bucket byte) []byte { return append([]byte{bucket}, make([]byte, 15)...) }

func TestNodesAreBounded(t *testing.T) {
	clock := newWall()
	s := open(t, t.TempDir(), localstore.Options{Now: clock.read})
	for i := range 10_100 {
		clock.add(time.Microsecond)
		if err := s.Touch(t.Context(), nodes.Node{ID: strconv.Itoa(i)}); err != nil {
			t.Fatal(err)
		}
	}
	if n, err := s.CountNodes(t.Context(), time.Minute); n != 10_000 || err != nil {
		t.Errorf("%d nodes, %v", n, err)
	}
}

// With its own goroutine running, the store saves grants into the file within a second or so.
func TestSavesByItself(t *testing.T) {
	dir := t.TempDir()
	s, err := localstore.Open(dir, slog.New(slog.DiscardHandler), localstore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	one(t, s, 1, perHour(t, 100), 1)
	before, err := os.ReadFile(filepath.Join(dir, "weir.db"))
	if err != nil {
		t.Fatal(err)
	}
	deadline := time.Now().Add(20 * time.Second)
	for {
		after, err := os.ReadFile(filepath.Join(dir, "weir.db"))
		if err != nil {
			t.Fatal(err)
		}
		if bytes.Contains(after, key(1)) && !bytes.Equal(after, before) {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal("nothing was saved")
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// One operation is a call of a node about 64 buckets, all of which are granted in full.
func BenchmarkGrant(b *testing.B) {
	s, err := localstore.Open(b.TempDir(), slog.New(slog.DiscardHandler), localstore.Options{SaveByHand: true})
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	p, err := quota.NewParams(1_000_000, quota.Second, 1_000_000)
	if err != nil {
		b.Fatal(err)
	}
	items := make([]leases.Item, 64)
	for i := range items {
		items[i] = leases.Item{Bucket: keyhash.Key{byte(i)},
			Ask: lease.Ask{Params: p, Version: 1, Waiting: 1, Cost: 1, Deadline: lease.Deadline, Keep: 10, Nodes: 3}}
	}
	b.ReportAllocs()
	for b.Loop() {
		grants, err := s.Grant(b.Context(), items)
		if err != nil || len(grants) != len(items) {
			b.Fatalf("%d grants: %v", len(grants), err)
		}
		for _, g := range grants {
			if g.Waiting != 1 || g.Keep != 10 {
				b.Fatalf("%+v", g)
			}
		}
	}
}

// A store that cannot save says since when, and that it is over.
func TestSavedSaysWhen(t *testing.T) {
	now := time.Unix(1000, 0)
	s, err := localstore.Open(t.TempDir(), slog.New(slog.DiscardHandler),
		localstore.Options{SaveByHand: true, Now: func() time.Time { return now }})
	if err != nil {
		t.Fatal(err)
	}
	for _, step := range []struct {
		broken bool
		want   time.Duration
	}{{false, 0}, {true, 7 * time.Second}, {true, 14 * time.Second}} {
		if now = now.Add(7 * time.Second); step.broken {
			s.Break()
		}
		if err := s.Save(); (err != nil) != step.broken {
			t.Fatalf("broken %v: %v", step.broken, err)
		}
		if ago, err := s.Saved(); ago != step.want || (err != nil) != step.broken {
			t.Errorf("broken %v: saved %v ago, %v", step.broken, ago, err)
		}
	}
}
