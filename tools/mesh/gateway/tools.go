//go:build tools

// Package gateway pins Envoy Gateway. tools/setup.sh builds it from this module, which keeps its
// requirements out of the product's.
package gateway

import _ "github.com/envoyproxy/gateway/cmd/envoy-gateway"
