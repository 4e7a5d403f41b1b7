//go:build tools

// Package node pins the programs that run pods beside the API server of the same version: kubelet,
// scheduler and controllers. It is a module of its own because the product's go.mod should not have
// their requirements. tools/setup.sh pods builds them.
package node

import (
	_ "k8s.io/kubernetes/cmd/kube-controller-manager"
	_ "k8s.io/kubernetes/cmd/kube-scheduler"
	_ "k8s.io/kubernetes/cmd/kubelet"
)
