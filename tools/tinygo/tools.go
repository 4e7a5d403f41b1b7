//go:build tools

// Package tinygo pins the compiler that builds the filter. It is a module of its own because the compiler's requirements
// have no business in the product's go.mod. wasm-build.sh builds the command from it, and uses no other TinyGo.
package tinygo

import _ "github.com/tinygo-org/tinygo"
