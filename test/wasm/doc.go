// Package wasm tests the filter as it is shipped: the built module, under the model of Envoy's Wasm
// host, in virtual time. The control plane is a script over the real arithmetic of grants.
package wasm
