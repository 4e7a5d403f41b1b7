// Package e2e tests the whole: real Envoys with the built filter, the built control plane, a real
// Redis, over HTTP. Each test is a promise of the documentation. If this machine lacks a program,
// the tests fail; nothing is skipped.
//
// Some tests measure how much passes or how soon, and some keep a processor busy. They run alone.
// All other tests are parallel: they wait for time to pass more than they work. They run at the
// end, beside each other, and their number exceeds the number of processors.
package e2e

import (
	"flag"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/weir-proxy/weir/tools/stack"
)

const (
	repository       = "../.."
	controlPlanePath = repository + "/build/weir"
	filterPath       = repository + "/build/weir.wasm"
	envoyConfigPath  = repository + "/envoy.yaml"
	examplePath      = repository + "/examples/url-shortener.yaml"
)

// quick is for authors of these tests; the figures of the documentation come from the full tests.
var quick = flag.Bool("quick", false, "apply load for a fifth of the time")

// parallelTests is how many parallel tests run at once.
const parallelTests = "4"

func TestMain(m *testing.M) {
	if err := flag.Set("test.parallel", parallelTests); err != nil {
		panic(err)
	}
	flag.Parse()
	code, err := prepare(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, "end-to-end tests cannot run:", err)
		code = 1
	}
	os.Exit(code)
}

func prepare(m *testing.M) (int, error) {
	if err := chooseHost(); err != nil {
		return 0, err
	}
	for path, target := range map[string]string{controlPlanePath: "build", host.File(filterPath): host.Target()} {
		if _, err := os.Stat(path); err != nil {
			return 0, fmt.Errorf("%w: run `make %s`", err, target)
		}
	}
	if _, err := stack.EnvoyBinary(); err != nil {
		return 0, err
	}
	zerolog.SetGlobalLevel(zerolog.Disabled) // Toxics log each connection that they break.
	go stalls.run()
	defer func() { os.RemoveAll(nextPlane.dir) }()
	return m.Run(), nil
}

// full shortens a time or a number if the tests are to be quick.
func full[T time.Duration | int](n T) T {
	if *quick {
		return n / 5
	}
	return n
}
