package fromenvoy_test

import (
	"os"
	"strings"
	"testing"

	"github.com/weir-proxy/weir/controlplane/internal/offline/importer"
	"github.com/weir-proxy/weir/controlplane/internal/offline/importer/fromenvoy"
	"github.com/weir-proxy/weir/controlplane/internal/offline/importer/importertest"
)

// Each filter, action, node and setting of a mesh's manifests has a verdict, at its line of the
// manifest also where a ConfigMap holds a file.
func TestEachItemOfAMeshHasAVerdict(t *testing.T) {
	text, err := os.ReadFile("testdata/istio.yaml")
	if err != nil {
		t.Fatal(err)
	}
	r, err := fromenvoy.Istio([]importer.File{{Name: "istio.yaml", Text: text}})
	if err != nil {
		t.Fatal(err)
	}
	importertest.Set(t, r)
	var lines []int
	for i, line := range strings.Split(string(text), "\n") {
		if _, what, found := strings.Cut(line, " # "); found &&
			(what == "item" || what == "node" || what == "setting") {
			lines = append(lines, i+1)
		}
	}
	importertest.Account(t, r, lines)
	golden(t, "testdata/istio.txt", r)
}

// A file in a ConfigMap that is no YAML is named with its line.
func TestABrokenFileInAConfigMap(t *testing.T) {
	_, err := fromenvoy.Istio([]importer.File{{Name: "m.yaml", Text: []byte(
		"kind: ConfigMap\ndata:\n  config.yaml: |\n    domain: d\n    descriptors: [\n")}})
	if err == nil || !strings.Contains(err.Error(), "m.yaml:") {
		t.Errorf("%v", err)
	}
}

// The written policy set is valid, whatever the manifests hold.
func FuzzIstio(f *testing.F) {
	text, err := os.ReadFile("testdata/istio.yaml")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(text)
	f.Add([]byte("kind: ConfigMapList\nitems: [{kind: ConfigMap, data: {a: 'domain: d'}}]"))
	f.Fuzz(func(t *testing.T, text []byte) {
		if r, err := fromenvoy.Istio([]importer.File{{Name: "f", Text: text}}); err == nil {
			importertest.Set(t, r)
		}
	})
}
