package app_test

import (
	"log/slog"
	"net/http"
	"strings"
	"testing"

	"github.com/weir-proxy/weir/controlplane/internal/app"
	"github.com/weir-proxy/weir/controlplane/internal/store/redisstore"
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/test/support/redistest"
)

// The control plane does not start with a Redis that may evict state that cannot be lost, unless
// forced. It names the remedy.
func TestARedisThatEvictsRefusesTheStart(t *testing.T) {
	server := redistest.Start(t, "--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru")
	s := bare(t)
	s.DataDir, s.RedisURL = "", server.URL()
	a, err := app.New(s, "test", slog.New(slog.DiscardHandler))
	if err == nil {
		t.Fatal("it started", a.Close())
	}
	for _, want := range []string{"allkeys-lru", "set maxmemory-policy noeviction", "--redis-may-evict"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not in %q", want, err)
		}
	}
	s.RedisMayEvict = true
	startWith(t, s, slog.New(slog.DiscardHandler)).until("/readyz/store", http.StatusOK)
}

// A user of Redis that loses a right without which nothing is granted, though the policy set can be
// read: the control plane is not ready, says why, and is as soon as the right is back.
func TestReadyMeansThatGrantsSucceed(t *testing.T) {
	server := redistest.Start(t)
	rights := func(more string) {
		t.Helper()
		all := strings.Fields("ACL SETUSER weir on >x " + redisstore.ACL + " " + more)
		if got := server.Do(all...); got != "+OK" {
			t.Fatal(got)
		}
	}
	rights("")
	p := start(t, "", "redis://weir:x@"+server.Addr())
	p.until("/readyz/store", http.StatusOK)
	version := p.put(100)
	granted := func() bool {
		_, ok := p.grant(version, keyhash.Key{1}, 1)
		return ok
	}
	answered(t, func(keyhash.Key) bool { return granted() })
	for _, lost := range []string{"-time", "-evalsha", "-eval"} {
		rights(lost)
		for range 50 {
			if granted() && lost != "-eval" { // The script is known by its hash.
				t.Fatalf("granted with %s", lost)
			}
		}
		if lost == "-eval" {
			p.until("/readyz/store", http.StatusOK)
			continue
		}
		p.until("/readyz/store", http.StatusServiceUnavailable, "Redis does not permit its user a command")
		rights("")
		p.until("/readyz/store", http.StatusOK)
		answered(t, func(keyhash.Key) bool { return granted() })
	}
}
