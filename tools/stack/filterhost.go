package stack

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// A FilterHost is the part of Envoy that runs the filter.
type FilterHost string

const (
	// WasmHost is Envoy's Wasm runtime, which runs weir.wasm.
	WasmHost FilterHost = "wasm"
	// NativeHost is a dynamic module, libweir.so: weir.wasm as machine code, with a host in C.
	NativeHost FilterHost = "native"
)

// hostVariable chooses the host of all Envoys whose options name none.
const hostVariable = "WEIR_HOST"

// ChosenHost returns the host that the variable WEIR_HOST names, by default WasmHost.
func ChosenHost() (FilterHost, error) {
	switch h := FilterHost(os.Getenv(hostVariable)); h {
	case "", WasmHost:
		return WasmHost, nil
	case NativeHost:
		return h, nil
	default:
		return "", fmt.Errorf("%s is %q; set it to %s or %s", hostVariable, h, WasmHost, NativeHost)
	}
}

// File returns the file that Envoy loads for a built filter: the module NAME.wasm itself, or
// libNAME.so in its folder.
func (h FilterHost) File(wasm string) string {
	if h != NativeHost || filepath.Ext(wasm) == ".so" {
		return wasm
	}
	name := strings.TrimSuffix(filepath.Base(wasm), ".wasm")
	return filepath.Join(filepath.Dir(wasm), "lib"+name+".so")
}

// Target returns the target of make that builds the filter for this host.
func (h FilterHost) Target() string {
	if h == NativeHost {
		return "native"
	}
	return "build"
}

// Configure returns a configuration of Envoy for this host: natively each Wasm filter whose code is
// the file wasm becomes a dynamic module. The configuration is a bootstrap or has resources of xDS.
func (h FilterHost) Configure(config, wasm string) (string, error) {
	if h != NativeHost {
		return config, nil
	}
	var document yaml.Node
	if err := yaml.Unmarshal([]byte(config), &document); err != nil {
		return "", fmt.Errorf("cannot read Envoy's configuration: %w", err)
	}
	if len(document.Content) == 0 {
		return "", errors.New("the configuration of Envoy is empty")
	}
	if err := replaceFilters(&document, wasm); err != nil {
		return "", err
	}
	if err := addClaims(&document); err != nil {
		return "", err
	}
	// Only a bootstrap has these flags.
	if root := document.Content[0]; child(root, "static_resources") != nil {
		if err := addRuntimeLayer(root); err != nil {
			return "", err
		}
	}
	var b bytes.Buffer
	encoder := yaml.NewEncoder(&b)
	encoder.SetIndent(2)
	if err := encoder.Encode(&document); err != nil {
		return "", err
	}
	return b.String(), nil
}

const (
	wasmFilterType   = "type.googleapis.com/envoy.extensions.filters.http.wasm.v3.Wasm"
	nativeFilterType = "type.googleapis.com/envoy.extensions.filters.http.dynamic_modules.v3.DynamicModuleFilter"
	tokenFilterType  = "type.googleapis.com/envoy.extensions.filters.http.jwt_authn.v3.JwtAuthentication"
	stateFilterType  = "type.googleapis.com/envoy.extensions.filters.http.set_filter_state.v3.Config"
	// searchPathVariable names the folder in which Envoy looks for lib{name}.so.
	searchPathVariable = "ENVOY_DYNAMIC_MODULES_SEARCH_PATH"
)

// replaceFilters replaces each Wasm filter below node whose code is the file wasm. Of vm_config, of
// failure_policy and of reload_config a dynamic module has nothing.
func replaceFilters(node *yaml.Node, wasm string) error {
	kind := child(node, "@type")
	if kind == nil || kind.Value != wasmFilterType {
		for _, part := range node.Content {
			if err := replaceFilters(part, wasm); err != nil {
				return err
			}
		}
		return nil
	}
	if file := child(node, "config", "vm_config", "code", "local", "filename"); file == nil || file.Value != wasm {
		return nil
	}
	name := strings.TrimSuffix(strings.TrimPrefix(filepath.Base(NativeHost.File(wasm)), "lib"), ".so")
	module := map[string]any{
		"@type": nativeFilterType,
		// The metrics keep the names that they have in Wasm.
		"dynamic_module_config": map[string]any{"name": name, "do_not_close": true, "metrics_namespace": "wasmcustom"},
	}
	for field, from := range map[string]string{"filter_name": "root_id", "filter_config": "configuration"} {
		if value := child(node, "config", from); value != nil {
			module[field] = value
		}
	}
	return node.Encode(module)
}

// addClaims adds a filter behind each filter below node that verifies tokens. It writes the claims
// as JSON into the filter state, where the native host looks for them: Envoy gives dynamic modules
// no values below a key of the metadata.
func addClaims(node *yaml.Node) error {
	for i, part := range node.Content {
		if err := addClaims(part); err != nil {
			return err
		}
		kind := child(part, "typed_config", "@type")
		if node.Kind != yaml.SequenceNode || kind == nil || kind.Value != tokenFilterType {
			continue
		}
		const key = "envoy.filters.http.jwt_authn"
		var filter yaml.Node
		err := filter.Encode(map[string]any{"name": "claims", "typed_config": map[string]any{
			"@type": stateFilterType,
			"on_request_headers": []any{map[string]any{
				"object_key": "weir.metadata." + key + ".payload", "factory_key": "envoy.string", "skip_if_empty": true,
				"format_string": map[string]any{"omit_empty_values": true, "text_format_source": map[string]any{
					"inline_string": "%DYNAMIC_METADATA(" + key + ":payload)%"}},
			}},
		}})
		if err != nil {
			return err
		}
		node.Content = slices.Insert(node.Content, i+1, &filter)
		return nil // A chain verifies tokens once.
	}
	return nil
}

// addRuntimeLayer adds a layer to the bootstrap root. Its flag gives the metrics of dynamic modules
// the names in Prometheus that they have in Wasm, without a prefix.
func addRuntimeLayer(root *yaml.Node) error {
	var layer yaml.Node
	err := layer.Encode(map[string]any{"name": "dynamic-modules", "static_layer": map[string]any{
		"envoy.reloadable_features.dynamic_modules_strip_custom_stat_prefix": true}})
	if err != nil {
		return err
	}
	if layers := child(root, "layered_runtime", "layers"); layers != nil {
		layers.Content = append(layers.Content, &layer)
		return nil
	}
	var all yaml.Node
	if err := all.Encode(map[string]any{"layers": []*yaml.Node{&layer}}); err != nil {
		return err
	}
	root.Content = append(root.Content, &yaml.Node{Kind: yaml.ScalarNode, Value: "layered_runtime"}, &all)
	return nil
}

// child returns the value at the end of a path of keys, nil if a key is missing.
func child(node *yaml.Node, path ...string) *yaml.Node {
	for _, key := range path {
		var value *yaml.Node
		for i := 0; node.Kind == yaml.MappingNode && i+1 < len(node.Content); i += 2 {
			if node.Content[i].Value == key {
				value = node.Content[i+1]
			}
		}
		if value == nil {
			return nil
		}
		node = value
	}
	return node
}
