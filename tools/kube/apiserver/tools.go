//go:build tools

// Package apiserver pins the Kubernetes API server that the tests of the chart install into. It is
// a module of its own because the product's go.mod should not have its requirements. tools/setup.sh
// kube builds it.
package apiserver

import _ "k8s.io/kubernetes/cmd/kube-apiserver"
