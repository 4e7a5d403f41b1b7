// Package api holds the description of the control plane's REST interface, from which its server is
// generated.
package api

import _ "embed"

// YAML is openapi.yaml: OpenAPI 3.1.
//
//go:embed openapi.yaml
var YAML []byte
