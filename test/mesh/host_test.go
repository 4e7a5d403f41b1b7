package mesh

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/weir-proxy/weir/test/support/kubetest"
	"github.com/weir-proxy/weir/tools/stack"
)

// host runs the filter in all proxies of these tests.
var host stack.FilterHost

func TestMain(m *testing.M) {
	var err error
	if host, err = stack.ChosenHost(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// natively reports whether the native host runs the filter.
func natively() bool { return host == stack.NativeHost }

// onlyIn skips a test with the other host, for the reason.
func onlyIn(t *testing.T, only stack.FilterHost, reason string) {
	t.Helper()
	if host != only {
		t.Skipf("only with the host %s: %s", only, reason)
	}
}

const nativePage = "docs/run/native.md"

// nativeBlock returns the block of the page of the native host that has the text.
func nativeBlock(t *testing.T, text string) string {
	t.Helper()
	return onlyBlock(t, nativePage, func(b string) bool { return strings.Contains(b, text) })
}

// onlyBlock returns the only YAML block of a page that is wanted.
func onlyBlock(t *testing.T, page string, wanted func(string) bool) string {
	t.Helper()
	var found []string
	for _, b := range pageBlocks(t, page) {
		if wanted(b) {
			found = append(found, b)
		}
	}
	if len(found) != 1 {
		t.Fatalf("%s has %d such blocks, want one block: %q", page, len(found), found)
	}
	return found[0]
}

// nativePath is the path of the native host in the manifests of the page.
const nativePath = "/etc/weir/libweir.so"

// envoyFilter is the plugin's manifest for the native host: the page's manifest with the plugin's
// values. Istio has no kind of its own for dynamic modules.
func (p plugin) envoyFilter(t *testing.T) string {
	t.Helper()
	var m map[string]any
	if err := yaml.Unmarshal([]byte(nativeBlock(t, "kind: EnvoyFilter")), &m); err != nil {
		t.Fatal(err)
	}
	m["metadata"] = map[string]any{"name": p.name, "namespace": "$NAMESPACE"}
	spec := m["spec"].(map[string]any)
	spec["workloadSelector"] = map[string]any{"labels": map[string]any{"app": "$NAMESPACE"}}
	spec["priority"] = p.priority
	patches := spec["configPatches"].([]any)
	patch := patches[0].(map[string]any)
	if p.match != "" {
		patch["match"].(map[string]any)["context"] = "SIDECAR_INBOUND"
	}
	change := patch["patch"].(map[string]any)
	filter := change["value"].(map[string]any)
	filter["name"] = "$NAMESPACE." + p.name
	module := filter["typed_config"].(map[string]any)
	module["filter_name"] = p.pluginName
	module["filter_config"].(map[string]any)["value"] = jsonOf(t, or(p.config, connected))
	module["dynamic_module_config"].(map[string]any)["module"] = map[string]any{
		"local": map[string]any{"filename": strings.TrimPrefix(or(p.url, "$MODULE"), "file://")}}
	if p.phase == "AUTHZ" {
		spec["configPatches"] = behindTokens(t, patch)
	}
	return string(encode(t, m))
}

// behindTokens returns the patches that put a filter behind Envoy's check of tokens: before it is
// the page's filter that hands the claims on.
func behindTokens(t *testing.T, patch map[string]any) []any {
	t.Helper()
	var claims []any
	if err := yaml.Unmarshal([]byte(nativeBlock(t, "%DYNAMIC_METADATA")), &claims); err != nil {
		t.Fatal(err)
	}
	var patches []any
	for _, filter := range []any{claims[0], patch["patch"].(map[string]any)["value"]} {
		patches = append(patches, map[string]any{
			"applyTo": "HTTP_FILTER",
			"match": map[string]any{"context": "GATEWAY", "listener": map[string]any{"filterChain": map[string]any{
				"filter": map[string]any{"name": "envoy.filters.network.http_connection_manager",
					"subFilter": map[string]any{"name": "envoy.filters.http.router"}}}}},
			"patch": map[string]any{"operation": "INSERT_BEFORE", "value": filter},
		})
	}
	return patches
}

// jsonOf returns YAML as JSON, which the native host takes.
func jsonOf(t *testing.T, text string) string {
	t.Helper()
	var v any
	if err := yaml.Unmarshal([]byte(text), &v); err != nil {
		t.Fatal(err)
	}
	return string(encode(t, v))
}

// filtersOf returns the conditions that an Envoy runs with the filters of an EnvoyFilter.
func filtersOf(t *testing.T, o kubetest.Object) (conditions []condition) {
	t.Helper()
	var spec struct {
		Patches []struct {
			Patch struct {
				Value struct {
					Name   string
					Filter struct {
						Module struct {
							Source json.RawMessage `json:"module"`
						} `json:"dynamic_module_config"`
						Config struct{ Value string } `json:"filter_config"`
					} `json:"typed_config"`
				}
			}
		} `json:"configPatches"`
	}
	if err := json.Unmarshal(encode(t, o["spec"]), &spec); err != nil {
		t.Fatal(err)
	}
	for _, p := range spec.Patches {
		value, module := p.Patch.Value, p.Patch.Value.Filter.Module.Source
		conditions = append(conditions, hasFilter(value.Name, compact(module),
			strings.Trim(string(encode(t, value.Filter.Config.Value)), `"`)))
	}
	return conditions
}

// nativeProxy returns the EnvoyProxy of the gateway's page with the part on the page of the native
// host that names the module. Source is the type of the source.
func nativeProxy(t *testing.T, source string) map[string]any {
	t.Helper()
	part := onlyBlock(t, nativePage, func(b string) bool {
		return strings.HasPrefix(b, "spec:\n  dynamicModules:\n") && strings.Contains(b, "type: "+source)
	})
	documents, err := kubetest.Parse(gatewayPage(t, "EnvoyProxy") + "\n---\n" + part)
	if err != nil {
		t.Fatal(err)
	}
	merge(documents[0], documents[len(documents)-1])
	return documents[0]
}

// merge adds the fields of more to object; lists are replaced.
func merge(object, more map[string]any) {
	for key, value := range more {
		inner, isMap := value.(map[string]any)
		if present, found := object[key].(map[string]any); isMap && found {
			merge(present, inner)
		} else {
			object[key] = value
		}
	}
}
