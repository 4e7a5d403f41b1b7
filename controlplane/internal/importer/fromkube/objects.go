// Package fromkube reads Kubernetes manifests: the annotations of ingress-nginx and Envoy Gateway's
// BackendTrafficPolicy.
package fromkube

import (
	"strings"

	"github.com/weir-proxy/weir/controlplane/internal/importer"
)

// object is a manifest.
type object struct {
	tree                  *importer.Tree
	kind, namespace, name string
}

func (o object) String() string { return o.kind + " " + o.name }

// objects reads the manifests of files, also those in lists as kubectl get writes them.
func objects(files []importer.File) (all []object, names []string, err error) {
	for _, f := range files {
		documents, err := importer.ParseTrees(f)
		if err != nil {
			return nil, nil, err
		}
		for _, doc := range documents {
			all = appendObjects(all, doc, 0)
		}
		names = append(names, f.Name)
	}
	return all, names, nil
}

func appendObjects(all []object, t *importer.Tree, depth int) []object {
	kind := t.Get("kind").Text()
	if strings.HasSuffix(kind, "List") && depth < 4 {
		for _, item := range t.Get("items").Items() {
			all = appendObjects(all, item, depth+1)
		}
		return all
	}
	meta := t.Get("metadata")
	return append(all, object{t, kind, meta.Get("namespace").Or("default"), meta.Get("name").Or("unnamed")})
}
