package redisstore_test

import (
	"log/slog"
	"strings"
	"testing"

	"github.com/weir-proxy/weir/controlplane/internal/ground/audit"
	"github.com/weir-proxy/weir/controlplane/internal/rules/consumers"
	"github.com/weir-proxy/weir/controlplane/internal/rules/enforcement"
	"github.com/weir-proxy/weir/controlplane/internal/store/redisstore"
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/test/support/redistest"
)

// Two deployments share a Redis, and neither sees nor touches anything of the other: a user that
// may use the keys of one alone is enough for it.
func TestDeploymentsShareARedis(t *testing.T) {
	server := redistest.Start(t)
	silent := slog.New(slog.DiscardHandler)
	plain := openURL(t, server.URL(), silent)
	server.Do(append(strings.Fields("ACL SETUSER acme on >secret"),
		strings.Fields(strings.ReplaceAll(redisstore.ACL, "~weir:*", "~acme:*"))...)...)
	url := strings.Replace(server.URL(), "redis://", "redis://acme:secret@", 1) + "?prefix=acme"
	acme := openURL(t, url, silent)
	p := params(t, 100, quota.Hour, 100)
	for i, s := range []*redisstore.Store{plain, acme} {
		secret := [16]byte{byte(i + 1)}
		if got, err := s.Secret(t.Context(), secret); err != nil || got != secret {
			t.Fatalf("%d: the secret is %x, %v", i, got, err)
		}
		if g := one(t, s, keyhash.Key{7}, p, 100); g.Waiting != 100 {
			t.Errorf("%d: of 100 tokens %d are granted", i, g.Waiting)
		}
		write := consumers.Write{Key: keyhash.Key{7}, Record: &consumers.Record{Tier: "gold"}}
		change := consumers.Changes{Writes: []consumers.Write{write}, Entry: audit.Entry{Action: "x"}}
		if _, err := (consumers.Kept{In: s}).WriteConsumers(t.Context(), change); err != nil {
			t.Errorf("%d: %v", i, err)
		}
		if list, err := s.Audit(t.Context(), "", 10); err != nil || len(list) != 1 {
			t.Errorf("%d: %d entries, %v", i, len(list), err)
		}
		d := enforcement.Document{Revision: 5}
		if err := (enforcement.Kept{In: s}).WriteEnforcement(t.Context(), enforcement.Write{Document: d}); err != nil {
			t.Errorf("%d: %v", i, err)
		}
	}
	for key := range strings.Lines(server.Do("KEYS", "*")) {
		if !strings.HasPrefix(key, "weir:{") && !strings.HasPrefix(key, "acme:{") {
			t.Errorf("the key %s belongs to neither", key)
		}
	}
	if n := len(strings.Fields(server.Do("KEYS", "acme:*"))); n < 70 {
		t.Errorf("only %d keys begin with the prefix", n)
	}
}

// In a Cluster the calls that look at one server use the prefix too. Another process, whose state
// may be old, is noticed, and no key of another deployment is touched.
func TestADeploymentWithAPrefixNoticesAnotherProcess(t *testing.T) {
	cluster := redistest.StartCluster(t, 3, false, durable...)
	allow := func(server *redistest.Server) {
		server.Do(append(strings.Fields("ACL SETUSER acme on >secret"),
			strings.Fields(strings.ReplaceAll(redisstore.ACL, "~weir:*", "~acme:*"))...)...)
	}
	for _, server := range cluster.Primaries {
		allow(server)
	}
	url := strings.Replace(cluster.URL(), "redis://", "redis://acme:secret@", 1) + "&prefix=acme"
	s := openURL(t, url, slog.New(slog.DiscardHandler))
	watch(t, s)
	each(t, "a new deployment", grantAll(t, s, 1, 60), func(int) int64 { return 60 })
	victim := cluster.Primary(cluster.Slot("acme:{meta}:secret"))
	cluster.Primaries[victim].Restart() // Its state is from a file, which may be old. The user is gone.
	allow(cluster.Primaries[victim])
	cluster.AwaitWhole()
	await(t, "the cluster", func() bool { _, err := s.Secret(t.Context(), [16]byte{1}); return err == nil })
	of := owners(cluster)
	watch(t, s)
	each(t, "a new bucket", grantAll(t, s, 2, 100), func(tag int) int64 { return 50 + full(of[tag], victim) })
	for i, server := range cluster.Primaries {
		for key := range strings.Lines(server.Do("KEYS", "*")) {
			if !strings.HasPrefix(key, "acme:{") {
				t.Errorf("server %d has the key %s", i, key)
			}
		}
	}
}

func TestAPrefixIsChecked(t *testing.T) {
	for _, prefix := range []string{"", "a:b", "a{b", "a*", strings.Repeat("a", 65)} {
		_, err := redisstore.Open("redis://127.0.0.1:1?prefix="+prefix, slog.New(slog.DiscardHandler))
		if err == nil || !strings.Contains(err.Error(), "prefix must have 1 to 64") {
			t.Errorf("%q: %v", prefix, err)
		}
	}
}
