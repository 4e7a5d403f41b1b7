package mesh

import (
	"maps"
	"os"
	"slices"
	"testing"
)

// spellings of a path which a service may take for /shorten. The values say whether the filter does
// under Istio's default path settings, in which Envoy leaves escaped slashes as they are.
var spellings = map[string]bool{
	"/shorten": true, "//shorten": true, "/./shorten": true, "/x/../shorten": true, "/%73horten": true,
	"/%2Fshorten": false, "/shorten%2F": false, "/shorten/": false, "/SHORTEN": false,
}

// The statements of SECURITY.md about paths under Istio, by default and with the setting that it
// recommends.
func spellingsOfAPath(t *testing.T, m *mesh) {
	g := aGround(t, m, "paths")
	g.store(plugin{name: "weir", pluginName: "weir", config: `{policyset: {version: weir/v1, policies: ` +
		`[{name: shorten, match: {paths: [/shorten]}, partition: [], limit: {quota: 1000000, window: 1h}, mode: local}]}}`}.manifest(t))
	p := g.start()
	limited := func(path string) bool {
		t.Helper()
		a, err := ask(p.url(path))
		if err != nil {
			t.Fatal(err)
		}
		return a.policy() == "shorten"
	}
	for _, path := range slices.Sorted(maps.Keys(spellings)) {
		if got := limited(path); got != spellings[path] {
			t.Errorf("%s by default: limited %v, want %v", path, got, spellings[path])
		}
	}

	t.Cleanup(func() { g.setMesh(t, settings) })
	g.setMesh(t, settings+"pathNormalization: {normalization: DECODE_AND_MERGE_SLASHES}\n")
	g.settle(p, hasSetting(`"path_with_escaped_slashes_action":"UNESCAPE_AND_FORWARD"`))
	for path, want := range map[string]bool{"/shorten": true, "//shorten": true, "/%2Fshorten": true,
		"/shorten%2F": false, "/shorten/": false} {
		if got := limited(path); got != want {
			t.Errorf("%s with decoded slashes: limited %v, want %v", path, got, want)
		}
	}
}

// setMesh changes the settings of the whole mesh, which istiod reads again.
func (g *ground) setMesh(t *testing.T, config string) {
	t.Helper()
	if err := os.WriteFile(g.config, []byte(config), 0o644); err != nil {
		t.Fatal(err)
	}
}
