package redisstore_test

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weir-proxy/weir/controlplane/internal/grant/leases"
	"github.com/weir-proxy/weir/controlplane/internal/store/redisstore"
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/lease"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/test/support/logtest"
	"github.com/weir-proxy/weir/test/support/redistest"
)

// asks asks for a token of a bucket of its own, and reports whether it was granted.
func asks(t *testing.T, s *redisstore.Store, n int, p quota.Params) bool {
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	ask := lease.Ask{Params: p, Waiting: 1, Cost: 1}
	grants, err := s.Grant(ctx, []leases.Item{{Bucket: numbered(n), Ask: ask}})
	return err == nil && len(grants) == 1 && grants[0].Waiting == 1
}

// numbered is the bucket of a number.
func numbered(n int) keyhash.Key { return keyhash.Key{byte(n), byte(n >> 8), byte(n >> 16)} }

// holds reports whether a server has the bucket of a number.
func holds(server *redistest.Server, n int) bool {
	return server.Has(redisstore.BucketKey(numbered(n)))
}

// The Sentinel in the URL hangs, or connections to it are neither made nor refused, and the other
// Sentinels make the replica the primary. Grants are made there while the old primary still acts as
// a primary. A store that starts then, and knows them all, grants there too.
func TestASentinelThatHangsIsNotFollowed(t *testing.T) {
	t.Parallel()
	for name, lose := range map[string]func(*testing.T, *redistest.Server){
		"hangs": func(t *testing.T, w *redistest.Server) {
			w.Pause()
			t.Cleanup(w.Resume)
		},
		"swallows connections": func(t *testing.T, w *redistest.Server) {
			w.Kill()
			redistest.Swallow(t, w.Addr())
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			servers := redistest.StartSentinels(t, separable...)
			var log logtest.Buffer
			url := "redis://" + servers.Watchers[0].Addr() + "/0?master_name=" + redistest.MasterName
			s := openURL(t, url, slog.New(slog.NewTextHandler(&log, nil)))
			p := params(t, 100, quota.Hour, 100)
			if _, err := s.Secret(t.Context(), [16]byte{1}); err != nil {
				t.Fatal(err)
			}
			if !asks(t, s, 1, p) || !holds(servers.Primary, 1) {
				t.Fatal("the primary grants nothing")
			}
			lose(t, servers.Watchers[0])
			if got := servers.Watchers[1].Do("SENTINEL", "FAILOVER", redistest.MasterName); got != "+OK" {
				t.Fatal(got)
			}
			await(t, "the replica to take over", servers.Replica.IsPrimary)
			n := 1
			await(t, "a grant of the new primary", func() bool {
				n++
				return asks(t, s, n, p) && holds(servers.Replica, n)
			})
			// The old one is a replica after eight seconds, or more than a thousand questions.
			if n > 400 {
				t.Errorf("it took %d questions to follow the Sentinels' word", n)
			}
			if !strings.Contains(log.String(), "the Sentinels have made another Redis the primary") {
				t.Errorf("the log does not say so: %s", log.String())
			}
			later := openURL(t, servers.URL(), slog.New(slog.DiscardHandler))
			await(t, "a grant of the new primary to a store that starts then", func() bool {
				n++
				return asks(t, later, n, p) && holds(servers.Replica, n)
			})
		})
	}
}

// A user with the rights of the page is enough for the Sentinels, also for Sentinels that the URL
// does not name.
func TestAUserOfSentinelsNeedsThreeCommands(t *testing.T) {
	t.Parallel()
	servers := redistest.StartSentinels(t, separable...)
	for _, w := range servers.Watchers {
		user := "ACL SETUSER weir on >secret " + redisstore.SentinelACL
		if got := w.Do(strings.Fields(user)...); got != "+OK" {
			t.Fatal(got)
		}
		w.Do("ACL", "SETUSER", "default", "-@all", "+acl", "+sentinel|failover")
	}
	var log logtest.Buffer
	url := "redis://" + servers.Watchers[0].Addr() + "/0?master_name=" + redistest.MasterName +
		"&sentinel_username=weir&sentinel_password=secret"
	s := openURL(t, url, slog.New(slog.NewTextHandler(&log, nil)))
	p := params(t, 100, quota.Hour, 100)
	if _, err := s.Secret(t.Context(), [16]byte{1}); err != nil {
		t.Fatal(err)
	}
	if !asks(t, s, 1, p) {
		t.Fatal("the primary grants nothing")
	}
	servers.Watchers[0].Pause()
	defer servers.Watchers[0].Resume()
	if got := servers.Watchers[1].Do("SENTINEL", "FAILOVER", redistest.MasterName); got != "+OK" {
		t.Fatal(got)
	}
	n := 1
	await(t, "a grant of the new primary", func() bool {
		n++
		return asks(t, s, n, p) && holds(servers.Replica, n)
	})
	for _, w := range servers.Watchers[1:] {
		if denied := w.Do("ACL", "LOG"); strings.Contains(denied, "weir") {
			t.Errorf("a command was denied: %s", denied)
		}
	}
}

// While a failover with several replicas lasts, its leader still has the old address in its facts,
// beside the new election. Weir goes to the new primary once, and stays there.
func TestTheLeaderOfAFailoverIsNotMisread(t *testing.T) {
	t.Parallel()
	servers := redistest.StartSentinels(t, separable...)
	_, port, _ := strings.Cut(servers.Primary.Addr(), ":")
	redistest.Start(t, slices.Concat(separable, []string{"--replicaof", "127.0.0.1 " + port,
		// It takes no order to follow another primary, so the leader waits for it for 5 s.
		"--replica-priority", "200", "--rename-command", "SLAVEOF", "IGNORED"})...)
	for _, w := range servers.Watchers {
		await(t, "the second replica to be known", func() bool {
			return strings.Contains(w.Do("INFO", "sentinel"), "slaves=2")
		})
	}
	var log logtest.Buffer
	s := openURL(t, servers.URL(), slog.New(slog.NewTextHandler(&log, nil)))
	p := params(t, 100, quota.Hour, 100)
	if _, err := s.Secret(t.Context(), [16]byte{1}); err != nil {
		t.Fatal(err)
	}
	if got := servers.Watchers[1].Do("SENTINEL", "FAILOVER", redistest.MasterName); got != "+OK" {
		t.Fatal(got)
	}
	const moves = "the Sentinels have made another Redis the primary"
	await(t, "the new primary to be followed", func() bool { return strings.Contains(log.String(), moves) })
	old := 0 // How often a Sentinel has named the old primary.
	for n := range 60 {
		for _, w := range servers.Watchers {
			if strings.Contains(w.Do("SENTINEL", "MASTER", redistest.MasterName), port) {
				old++
			}
		}
		asks(t, s, n, p)
		time.Sleep(50 * time.Millisecond) // The failover goes on by real time.
	}
	if old == 0 {
		t.Error("no Sentinel named the old primary meanwhile, so this shows nothing")
	}
	if n := strings.Count(log.String(), moves); n != 1 {
		t.Errorf("the primary was changed %d times: %s", n, log.String())
	}
}

// An operator makes the Sentinels promote the replica, while tokens are asked for. Grants of the
// old primary after the replica has stopped to listen are granted again. If its writes are paused
// before, or need a replica that listens, no token is granted again.
func TestAPlannedFailover(t *testing.T) {
	for name, c := range map[string]struct {
		pause   bool
		options []string
		doubles bool
	}{
		"as it is":             {doubles: true},
		"writes paused before": {pause: true},
		"writes need a replica": {options: []string{
			"--min-replicas-to-write", "1", "--min-replicas-max-lag", "2", "--repl-ping-replica-period", "1",
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			servers := redistest.StartSentinels(t, slices.Concat(separable, c.options)...)
			var log logtest.Buffer
			s := openURL(t, servers.URL(), slog.New(slog.NewTextHandler(&log, nil)))
			p := params(t, 1_000_000, 360*24*quota.Hour, 1_000_000)
			if _, err := s.Secret(t.Context(), [16]byte{1}); err != nil {
				t.Fatal(err)
			}
			granted, moved := 0, func() bool { return strings.Contains(log.String(), "another Redis the primary") }
			ask := func() bool {
				yes := asks(t, s, 1, p)
				if yes {
					granted++
				}
				return yes
			}
			for range 200 {
				ask()
			}
			if c.pause {
				servers.Primary.Do("CLIENT", "PAUSE", "20000", "WRITE")
			}
			before := granted
			if got := servers.Watchers[1].Do("SENTINEL", "FAILOVER", redistest.MasterName); got != "+OK" {
				t.Fatal(got)
			}
			await(t, "the new primary", func() bool { ask(); return moved() })
			during, begin := granted-before, time.Now()
			await(t, "grants of the new primary", ask)
			t.Logf("grants went on %v after the Sentinels' word", time.Since(begin).Round(time.Millisecond))
			for after := 0; after < 200; {
				if ask() {
					after++
				}
			}
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			held, err := s.Grant(ctx, []leases.Item{{Bucket: numbered(1), Ask: lease.Ask{Params: p, Cost: 1}}})
			if err != nil {
				t.Fatal(err)
			}
			again := granted - int(p.Burst-held[0].Level)
			t.Logf("%d of %d tokens were granted twice; %d meanwhile", again, granted, during)
			// Tokens that were earned meanwhile, one in half a minute, look as if granted twice.
			if most := map[bool]int{true: during}[c.doubles]; again < 0 || again > most+5 {
				t.Errorf("%d tokens were granted twice, at most %d may be; %d meanwhile", again, most, during)
			}
		})
	}
}
