// Package plugin is the filter's callbacks, each a few lines: it hands what Envoy says to the
// packages that decide, and what they decide to Envoy.
package plugin
