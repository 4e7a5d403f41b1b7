//go:build tools

// Package kustomize pins the kustomize that the tests of deploy/kustomize build with. It is a module of its own because
// what that requires has no business in the product's go.mod. tools/setup.sh kube builds it.
package kustomize

import _ "sigs.k8s.io/kustomize/kustomize/v5"
