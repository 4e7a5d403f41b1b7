package e2e

import "testing"

// The state of an Envoy's process is gone with it. A bucket of the Envoy's own comes back full. A
// bucket of the control plane does not: the tokens that the Envoy had in hand count as used.
func TestARestartOfEnvoyFillsItsOwnBucketsAlone(t *testing.T) {
	t.Parallel()
	const policies = `
version: weir/v1
policies:
  - {name: own, match: {paths: [/own]}, partition: [], limit: {quota: 10, window: 24h}, mode: local}
  - {name: own-window, match: {paths: [/window]}, partition: [], algorithm: sliding_window, limit: {quota: 10, window: 24h}, mode: local}
  - {name: leased, match: {paths: [/leased]}, partition: [], limit: {quota: 10, window: 24h}, mode: leased}
  - {name: strict, match: {paths: [/strict]}, partition: [], limit: {quota: 10, window: 24h}, mode: strict}
`
	w := start(t, setup{policies: policies})
	paths := []string{"/own", "/window", "/leased", "/strict"}
	pass := func() (passed [4]int64) {
		for i, path := range paths {
			passed[i] = load{url: w.envoys[0].URL() + path, clients: 1, total: 20}.run(w.ctx).statuses[200]
		}
		return passed
	}
	if got := pass(); got != [4]int64{10, 10, 10, 10} {
		t.Errorf("at first %v passed of 10 each", got)
	}
	w.restartEnvoy()
	// Only the new process can apply a version that is newer than the old process.
	w.awaitApplied(w.apply(policies +
		"  - {name: more, match: {paths: [/more]}, partition: [], limit: {quota: 1, window: 24h}, mode: local}\n"))
	if got := pass(); got != [4]int64{10, 10, 0, 0} {
		t.Errorf("after a restart %v passed; the Envoy's own buckets are full again, the others are used up", got)
	}
}
