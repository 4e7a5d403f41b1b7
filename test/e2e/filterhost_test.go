package e2e

import (
	"context"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/weir-proxy/weir/tools/stack"
)

// host runs the filter in all Envoys of these tests.
var host stack.FilterHost

// wasmOnly are the tests of promises that Wasm alone makes, each with the reason. Natively they do
// not run.
var wasmOnly = map[string]string{
	"TestAStructForConfigurationIsExplained": "Envoy hands a dynamic module a Struct as JSON, which the filter takes",
}

// chooseHost reads the host of the filter. Natively it skips the tests of wasmOnly.
func chooseHost() error {
	var err error
	host, err = stack.ChosenHost()
	if err != nil || host == stack.WasmHost || len(wasmOnly) == 0 {
		return err
	}
	skipped := flag.Lookup("test.skip").Value
	names := slices.Sorted(maps.Keys(wasmOnly))
	for _, name := range names {
		fmt.Fprintf(os.Stderr, "natively %s does not run: %s\n", name, wasmOnly[name])
	}
	pattern := "^(" + strings.Join(names, "|") + ")$"
	if before := skipped.String(); before != "" {
		pattern = before + "|" + pattern
	}
	return skipped.Set(pattern)
}

// onHost returns resources of xDS for the host of the filter.
func onHost(t *testing.T, resources string) string {
	t.Helper()
	module, err := filepath.Abs(filterPath)
	if err != nil {
		t.Fatal(err)
	}
	resources, err = host.Configure(resources, module)
	if err != nil {
		t.Fatal(err)
	}
	return resources
}

// A name that no test has would hide that a test runs again, or that it has another name.
func TestOnlyTestsAreWasmOnly(t *testing.T) {
	files, err := filepath.Glob("*_test.go")
	if err != nil {
		t.Fatal(err)
	}
	tests := map[string]bool{}
	for _, name := range files {
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, declaration := range file.Decls {
			if function, ok := declaration.(*ast.FuncDecl); ok && function.Recv == nil {
				tests[function.Name.Name] = true
			}
		}
	}
	for name, reason := range wasmOnly {
		if !strings.HasPrefix(name, "Test") || !tests[name] {
			t.Errorf("there is no test %s", name)
		}
		if len(reason) < 20 {
			t.Errorf("%s has no reason", name)
		}
	}
}

// labelled matches the metrics that natively have labels; in Wasm the values of the labels are in
// the name.
var labelled = regexp.MustCompile(`^weir\.(.+?)\.weir_policy\.(.+?)(?:\.weir_(outcome|class)\.(.+))?$`)

// nameInWasm returns the name that a metric of the filter has in Wasm.
func nameInWasm(name string) string {
	m := labelled.FindStringSubmatch(name)
	if m == nil {
		return name
	}
	label := ""
	if m[3] != "" {
		label = m[3] + "." + m[4] + "."
	}
	return "weir.policy." + m[2] + "." + label + m[1]
}

// statistic matches a metric of the filter in the output of a command.
var statistic = regexp.MustCompile(`(?m)^wasmcustom\.(weir\.[^:\n]+)`)

// renameMetrics gives the metrics in an output the names that they have in Wasm.
func renameMetrics(output string) string {
	return statistic.ReplaceAllStringFunc(output, func(name string) string {
		return "wasmcustom." + nameInWasm(strings.TrimPrefix(name, "wasmcustom."))
	})
}

func TestMetricsHaveOneNameForBothHosts(t *testing.T) {
	for name, want := range map[string]string{
		"weir.decisions.by_local":                                  "weir.decisions.by_local",
		"weir.decisions.weir_policy.a.b.weir_outcome.allowed":      "weir.policy.a.b.outcome.allowed.decisions",
		"weir.in_flight.peak_percent.weir_policy.a.in_flight":      "weir.policy.a.in_flight.in_flight.peak_percent",
		"weir.shed.requests.weir_policy.p.weir_class.of-some.kind": "weir.policy.p.class.of-some.kind.shed.requests",
		"weir.policy.p.outcome.shadow_refused.decisions":           "weir.policy.p.outcome.shadow_refused.decisions",
	} {
		if got := nameInWasm(name); got != want {
			t.Errorf("%s is called %s, want %s", name, got, want)
		}
	}
}

// No Envoy of these tests runs another host than the variable says.
func TestTheChosenHostRunsTheFilter(t *testing.T) {
	t.Parallel()
	w := start(t, setup{alone: true, plugin: inline(1, "1h", "")})
	dump, err := w.envoys[0].Admin(context.Background(), "/config_dump?resource=static_listeners")
	if err != nil {
		t.Fatal(err)
	}
	for kind, mark := range map[stack.FilterHost]string{
		stack.WasmHost: "envoy.extensions.filters.http.wasm.v3.Wasm", stack.NativeHost: "DynamicModuleFilter",
	} {
		if has := strings.Contains(string(dump), mark); has != (kind == host) {
			t.Errorf("with the host %s Envoy's configuration has %s: %t", host, mark, has)
		}
	}
	if got := ask(t, "GET", w.envoys[0].URL()+"/", "x-key", "k").Header.Get("Ratelimit-Policy"); got == "" {
		t.Error("the filter does not answer")
	}
}
