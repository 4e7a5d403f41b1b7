package mesh

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/weir-proxy/weir/tools/stack"
)

// restartPolicies limit a path each, in each of the modes.
const restartPolicies = `
version: weir/v1
policies:
  - {name: own, match: {paths: [/own]}, partition: [], limit: {quota: 100, window: 24h}, mode: local}
  - {name: leased, match: {paths: [/leased]}, partition: [], limit: {quota: 100, window: 24h}, mode: leased,
     on_failure: {then: deny}}
  - {name: strict, match: {paths: [/strict]}, partition: [], limit: {quota: 100, window: 24h}, mode: strict,
     on_failure: {then: deny}}
`

// Envoy Gateway ends the Envoy of a Gateway that is taken away, and starts a new Envoy when it
// comes back. The new Envoy's own buckets are full; tokens that the control plane counts stay used.
func TestEnvoyGatewayRestartsAnEnvoy(t *testing.T) {
	w := aGateway(t, usualSource(), filterFrom(t, usualSource()))
	apply := func(policies string) {
		t.Helper()
		version, err := w.control.Apply(within(t), []byte(policies))
		if err != nil {
			t.Fatal(err)
		}
		w.awaitVersion(version)
	}
	apply(restartPolicies)
	limits(t, w.url("/own"), "own", quota)
	// A call that comes back late on a busy machine refuses its request, and costs tokens too.
	late, before := []string{quotaExceeded, reducedCapacity}, map[string]int{}
	for _, mode := range []string{"leased", "strict"} {
		before[mode] = passes(t, w.url("/"+mode), mode, late)
		if before[mode] < quota/2 {
			t.Errorf("%s: only %d passed before the restart", mode, before[mode])
		}
	}
	page := filepath.Join(w.dir, "resources/page.yaml")
	manifests, err := os.ReadFile(page)
	if err == nil {
		err = os.Remove(page)
	}
	if err != nil {
		t.Fatal(err)
	}
	w.awaitSilence()
	w.write("resources/page.yaml", string(manifests))
	w.settle(hasFilter("/default/weir/"))
	// Only the new Envoy can apply a version that is newer than the old Envoy.
	apply(restartPolicies + "  - {name: more, match: {paths: [/more]}, partition: [], limit: {quota: 1, " +
		"window: 24h}, mode: local}\n")
	limits(t, w.url("/own"), "own", quota)
	for mode, used := range before {
		if after := passes(t, w.url("/"+mode), mode, late); used+after > quota {
			t.Errorf("%s: %d passed before the restart, %d after it: more than %d", mode, used, after, quota)
		}
	}
}

// awaitSilence waits until no Envoy listens.
func (w *gatewayWorld) awaitSilence() {
	w.t.Helper()
	err := stack.Await(within(w.t), "the end of the Envoy", func(context.Context) error {
		if _, err := ask(w.url("/")); errors.Is(err, syscall.ECONNREFUSED) {
			return nil
		}
		return errors.New("something listens there")
	})
	if err != nil {
		w.t.Fatal(err)
	}
}
