//go:build tools

// Package kustomize pins the kustomize that the tests of deploy/kustomize build with. It is a
// module of its own because the product's go.mod should not have its requirements. tools/setup.sh
// kube builds it.
package kustomize

import _ "sigs.k8s.io/kustomize/kustomize/v5"
