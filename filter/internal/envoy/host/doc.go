// Package host has every call into Envoy. It makes no decisions, and does not panic on a status: a
// failed call reports it to the caller, unless the failure has no effect.
package host
