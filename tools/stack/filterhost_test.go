package stack_test

import (
	"os"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/weir-proxy/weir/tools/stack"
)

func TestTheVariableChoosesTheHostOfTheFilter(t *testing.T) {
	hosts := map[string]stack.FilterHost{"": stack.WasmHost, "wasm": stack.WasmHost, "native": stack.NativeHost}
	for value, want := range hosts {
		t.Setenv("WEIR_HOST", value)
		if got, err := stack.ChosenHost(); got != want || err != nil {
			t.Errorf("WEIR_HOST=%s chooses %s, %v; want %s", value, got, err, want)
		}
	}
	for _, value := range []string{"Native", "v8", "native "} {
		t.Setenv("WEIR_HOST", value)
		if got, err := stack.ChosenHost(); err == nil || !strings.Contains(err.Error(), "WEIR_HOST") {
			t.Errorf("WEIR_HOST=%q chooses %q, %v; want an error that names the variable", value, got, err)
		}
	}
}

// nativeFilter is the filter of envoy.yaml as a dynamic module.
const nativeFilter = `
name: weir
typed_config:
  "@type": type.googleapis.com/envoy.extensions.filters.http.dynamic_modules.v3.DynamicModuleFilter
  dynamic_module_config: {name: weir, do_not_close: true, metrics_namespace: wasmcustom}
  filter_name: weir
  filter_config:
    "@type": type.googleapis.com/google.protobuf.StringValue
    value: |
      {"control_plane": {"cluster": "weir", "token": {"env": "WEIR_NODE_TOKEN"}, "authority": "weir"}}
`

// Natively nothing but the filter and one flag is different.
func TestTheNativeConfigurationDiffersInTheFilter(t *testing.T) {
	text, err := os.ReadFile("../../envoy.yaml")
	if err != nil {
		t.Fatal(err)
	}
	got, err := stack.NativeHost.Configure(string(text), "/etc/envoy/weir.wasm")
	if err != nil {
		t.Fatal(err)
	}
	same, err := stack.WasmHost.Configure(string(text), "/etc/envoy/weir.wasm")
	if same != string(text) || err != nil {
		t.Errorf("the Wasm host changes the configuration: %v", err)
	}
	before, after := parse(t, string(text)), parse(t, got)
	filter := parse(t, nativeFilter)
	filtersOf(before)[0] = filter
	before["layered_runtime"] = parse(t, "layers: [{name: dynamic-modules, static_layer: "+
		"{envoy.reloadable_features.dynamic_modules_strip_custom_stat_prefix: true}}]")
	if a, b := format(t, before), format(t, after); a != b {
		t.Errorf("want\n%s\ngot\n%s", a, b)
	}
}

// A filter of another file stays as it is, and so does a layer that is there.
func TestOnlyTheBuiltFilterBecomesNative(t *testing.T) {
	const config = `static_resources: {}
layered_runtime:
  layers:
    - name: first
      static_layer: {a: 1}
filters:
  - typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.wasm.v3.Wasm, config: {root_id: other,
      vm_config: {code: {local: {filename: /other.wasm}}}}}
  - typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.wasm.v3.Wasm, config: {root_id: built,
      vm_config: {code: {local: {filename: /built.wasm}}}}}
`
	got, err := stack.NativeHost.Configure(config, "/built.wasm")
	if err != nil {
		t.Fatal(err)
	}
	names := []string{"root_id: other", "filter_name: built", "name: built", "name: first", "name: dynamic-modules"}
	for _, want := range names {
		if !strings.Contains(got, want) {
			t.Errorf("%q is not in:\n%s", want, got)
		}
	}
	if strings.Contains(got, "/built.wasm") {
		t.Errorf("the built filter is still Wasm:\n%s", got)
	}
}

func parse(t *testing.T, text string) (document map[string]any) {
	t.Helper()
	if err := yaml.Unmarshal([]byte(text), &document); err != nil {
		t.Fatal(err)
	}
	return document
}

func format(t *testing.T, document any) string {
	t.Helper()
	text, err := yaml.Marshal(document)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// filtersOf returns the HTTP filters of the first listener.
func filtersOf(document map[string]any) []any {
	at := func(node any, key string) any { return node.(map[string]any)[key] }
	listener := at(document["static_resources"], "listeners").([]any)[0]
	chain := at(listener, "filter_chains").([]any)[0]
	manager := at(chain, "filters").([]any)[0]
	return at(at(manager, "typed_config"), "http_filters").([]any)
}
