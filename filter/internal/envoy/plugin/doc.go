// Package plugin has the filter's callbacks, each a few lines: a callback passes Envoy's data to
// the packages that decide, and their decisions to Envoy.
package plugin
