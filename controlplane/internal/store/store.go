// Package store lists what a store of the control plane must be able to do. Each part is the port
// of the service that uses it; redisstore and localstore implement them all.
package store

import (
	"github.com/weir-proxy/weir/controlplane/internal/audit"
	"github.com/weir-proxy/weir/controlplane/internal/consumers"
	"github.com/weir-proxy/weir/controlplane/internal/decisions"
	"github.com/weir-proxy/weir/controlplane/internal/enforcement"
	"github.com/weir-proxy/weir/controlplane/internal/leases"
	"github.com/weir-proxy/weir/controlplane/internal/nodes"
	"github.com/weir-proxy/weir/controlplane/internal/penalties"
	"github.com/weir-proxy/weir/controlplane/internal/policies"
	"github.com/weir-proxy/weir/controlplane/internal/push"
	"github.com/weir-proxy/weir/controlplane/internal/regions"
	"github.com/weir-proxy/weir/controlplane/internal/series"
)

// Store is all ports together.
type Store interface {
	policies.Store
	nodes.Store
	leases.Store
	leases.Buckets
	consumers.Store
	penalties.Store
	enforcement.Store
	audit.Store
	decisions.Store
	series.Store
	push.Store
	// Region is where the control planes on this store keep what their region uses.
	Region() regions.Cell
	Close() error
}
