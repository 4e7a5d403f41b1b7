// Package fromkube reads Kubernetes manifests: the annotations of ingress-nginx and Envoy Gateway's
// BackendTrafficPolicy.
package fromkube

import (
	"github.com/weir-proxy/weir/controlplane/internal/offline/importer"
)

// object is a manifest.
type object struct {
	tree                  *importer.Tree
	kind, namespace, name string
}

func (o object) String() string { return o.kind + " " + o.name }

// readObjects reads the manifests of files.
func readObjects(files []importer.File) (all []object, source string, err error) {
	manifests, source, err := importer.Manifests(files)
	for _, t := range manifests {
		meta := t.Get("metadata")
		all = append(all, object{
			t, t.Get("kind").Text(), meta.Get("namespace").Or("default"), meta.Get("name").Or("unnamed"),
		})
	}
	return all, source, err
}
