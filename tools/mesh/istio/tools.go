//go:build tools

// Package istio pins Istio: its control plane istiod, and the agent that runs beside each Envoy.
// tools/setup.sh builds both from this module, which keeps their requirements out of the product's.
package istio

import (
	_ "istio.io/istio/pilot/cmd/pilot-agent"
	_ "istio.io/istio/pilot/cmd/pilot-discovery"
)
