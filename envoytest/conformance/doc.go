// Package conformance holds the test that the model of envoytest behaves as Envoy does: one guest
// runs the same scripts in both, and both have to log the same and answer the same.
package conformance
