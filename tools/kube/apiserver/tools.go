//go:build tools

// Package apiserver pins the Kubernetes API server that the tests of the chart install into. It is a module of its own because
// what that requires has no business in the product's go.mod. tools/setup.sh kube builds it.
package apiserver

import _ "k8s.io/kubernetes/cmd/kube-apiserver"
