//go:build tools

// Package etcd pins the store of the API server that the tests of the chart install into. It is a
// module of its own because the product's go.mod should not have its requirements. tools/setup.sh
// kube builds it.
package etcd

import _ "go.etcd.io/etcd/server/v3"
