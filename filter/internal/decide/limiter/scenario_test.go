package limiter_test

import (
	"testing"

	"github.com/weir-proxy/weir/filter/scenariotest"
)

// Timelines that the built module plays, too (test/wasm).
func TestScenarios(t *testing.T) {
	scenariotest.Run(t, scenariotest.All(), scenariotest.StartProcess)
}
