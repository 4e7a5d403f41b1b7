package e2e

import (
	"context"
	"errors"
	"testing"

	"github.com/weir-proxy/weir/test/support/redistest"
)

// startOn starts a world with the ladder's policies whose state is in the Redis at a URL.
func startOn(t *testing.T, redisURL string) *world {
	t.Helper()
	w := start(t, setup{envoys: 2, alone: true})
	w.serve.RedisURL = redisURL
	w.startControlPlane()
	w.awaitApplied(w.apply(ladder))
	return w
}

// survive kills a primary under load, and wants every limit decided by the control plane again once
// the replica has taken over.
func (w *world) survive(primary, replica *redistest.Server) {
	w.t.Helper()
	busy := w.steady()
	w.awaitRecovered()
	primary.Kill()
	w.await("the replica to take over", func(context.Context) error {
		if !replica.IsPrimary() {
			return errors.New("it does not")
		}
		return nil
	})
	w.awaitRecovered()
	// The stored document is there still, and the store takes another once the shard with the
	// policies is back too.
	var version uint64
	w.await("the store to take policies", func(ctx context.Context) (err error) {
		version, err = w.controlPlane.Apply(ctx,
			[]byte(ladder+"  - {name: more, match: {paths: [/more]}, partition: [], limit: {quota: 1, window: 24h}, "+
				"mode: local}\n"))
		return err
	})
	w.awaitApplied(version)
	got := busy.end()
	got.mustBe(w.t, 200, 429)
	w.t.Log(got)
}

func TestAPrimaryOfARedisClusterMayDieUnderLoad(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t, 3, true)
	w := startOn(t, cluster.URL())
	at := cluster.Primary(cluster.Slot("weir:{meta}:version")) // The shard with the policies.
	w.survive(cluster.Primaries[at], cluster.Replicas[at])
}

func TestSentinelsMayReplaceThePrimaryUnderLoad(t *testing.T) {
	t.Parallel()
	servers := redistest.StartSentinels(t)
	startOn(t, servers.URL()).survive(servers.Primary, servers.Replica)
}
