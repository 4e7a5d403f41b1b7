package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/weir-proxy/weir/test/support/redistest"
)

// A replica that is behind takes over, again and again. Tokens are granted twice only for grants
// that it had not heard of, rate × lag at most, and for buckets that it does not know. The log
// reports each takeover.
func TestChaosALateReplicaTakesOver(t *testing.T) {
	t.Parallel()
	const lag = 300 * time.Millisecond
	w := start(t, setup{envoys: 2, alone: true})
	primary := redistest.Start(t, "--repl-diskless-sync-delay", "0")
	way := startProxy(t, primary.Addr())
	w.serve.RedisURL = fmt.Sprintf("redis://127.0.0.1:%d/0", way.port)
	w.startControlPlane()
	w.awaitApplied(w.apply(chaotic))
	const logged = "another Redis process keeps the state of buckets"
	rounds := either(2, 20)
	denies, callers := w.crowd("/denies", 100), w.withinLimits(w.envoys...)
	time.Sleep(2 * time.Second) // Until nothing is left of the burst: a drained bucket gets no burst anew.
	missed, stalled := 0, time.Duration(0)
	for round := range rounds {
		behind := startProxy(t, primary.Addr())
		replica := redistest.Start(t, "--repl-diskless-sync-delay", "0", "--replicaof",
			fmt.Sprintf("127.0.0.1 %d", behind.port))
		w.await("the replica to have the state", func(context.Context) error {
			if text := replica.Do("INFO", "replication"); !strings.Contains(text, "master_link_status:up") {
				return fmt.Errorf("it says %s", text)
			}
			return nil
		})
		poisoned := time.Now()
		behind.poison("latency", attributes{"latency": int(lag.Milliseconds())})
		time.Sleep(2 * lag)
		granted := counted(primary, "replication", "master_repl_offset:")
		behind.Stop() // Changes on their way are lost.
		stalled += stalls.between(poisoned, time.Now())
		primary.Kill()
		begin := time.Now()
		missed += granted - counted(replica, "replication", "slave_repl_offset:")
		replica.Do("REPLICAOF", "NO", "ONE")
		way.sendTo(replica.Addr())
		w.await("the log line of the takeover", func(context.Context) error {
			if n := strings.Count(w.controlPlane.Stderr.String(), logged); n < round+1 {
				return fmt.Errorf("the log has %d", n)
			}
			return nil
		})
		w.awaitGround()
		t.Logf("grants again %v after the primary was killed", time.Since(begin).Round(time.Millisecond))
		primary = replica
		time.Sleep(either(500*time.Millisecond, 2*time.Second))
	}
	noneRefused(t, "takeovers", callers)
	// The lag of the link, and the time that replica and test may take beside it.
	extra := float64(rounds)*chaoticRate*(lag+200*time.Millisecond).Seconds() + chaoticRate*stalled.Seconds()
	mustHold(t, "takeovers", denies.end(), chaoticBurst, chaoticRate, extra, 0.3)
	t.Logf("%d bytes of changes were lost with %d primaries", missed, rounds)
	if missed <= 0 {
		t.Error("the replicas had missed nothing")
	}
}
