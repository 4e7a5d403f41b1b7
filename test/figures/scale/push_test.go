package main

import (
	"fmt"
	"os"
	"testing"
	"time"
)

const repository = "../../.."

// A policy set reaches a hundred nodes, and the control plane says so, whichever replica a node
// polls. The promise is one second at the 99th percentile; here it may take five times as long,
// because a machine that runs tests has other things to do.
func TestAPushReachesAHundredNodes(t *testing.T) {
	for _, replicas := range []int{1, 2} {
		t.Run(fmt.Sprintf("%d replicas", replicas), func(t *testing.T) {
			w := testWorld(t, replicas)
			const nodes, pushes = 100, 5
			reached, acknowledged, err := w.push(t.Context(), nodes, pushes)
			if err != nil {
				t.Fatal(err)
			}
			if len(reached) != nodes*pushes || len(acknowledged) != nodes*pushes {
				t.Fatalf("%d arrived and %d acknowledged, want %d", len(reached), len(acknowledged), nodes*pushes)
			}
			t.Logf("reached: p50 %s, p99 %s; acknowledged: p50 %s, p99 %s",
				reached.at(.5), reached.at(.99), acknowledged.at(.5), acknowledged.at(.99))
			if p99 := acknowledged.at(.99); p99 > 5*time.Second {
				t.Errorf("99 %% of the nodes had acknowledged only after %s", p99)
			}
		})
	}
}

func testWorld(t *testing.T, replicas int) *world {
	t.Helper()
	w, err := start(t.Context(), repository, "", replicas, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if w.stop(); t.Failed() {
			for _, p := range w.planes {
				t.Log(p.Stderr.Tail(20))
			}
		}
	})
	return w
}

func TestMain(m *testing.M) {
	if _, err := os.Stat(repository + "/build/weir"); err != nil {
		fmt.Fprintln(os.Stderr, "run make build first:", err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}
