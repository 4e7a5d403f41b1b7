// Package store lists all operations of a store of the control plane. Each part is the port of the
// service that uses it. redisstore and localstore implement all of them.
package store

import (
	"github.com/weir-proxy/weir/controlplane/internal/fleet/nodes"
	"github.com/weir-proxy/weir/controlplane/internal/fleet/push"
	"github.com/weir-proxy/weir/controlplane/internal/grant/leases"
	"github.com/weir-proxy/weir/controlplane/internal/ground/audit"
	"github.com/weir-proxy/weir/controlplane/internal/ground/docs"
	"github.com/weir-proxy/weir/controlplane/internal/observe/decisions"
	"github.com/weir-proxy/weir/controlplane/internal/rules/policies"
)

// Store is all ports together.
type Store interface {
	policies.Store
	nodes.Store
	leases.Store
	leases.Buckets
	docs.Store
	audit.Store
	decisions.Store
	push.Store
	Close() error
}
