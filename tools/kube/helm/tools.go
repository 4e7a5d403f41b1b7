//go:build tools

// Package helm pins the helm that the tests of the chart install with. It is a module of its own
// because the product's go.mod should not have its requirements. tools/setup.sh kube builds it.
package helm

import _ "helm.sh/helm/v4/cmd/helm"
