// Package host holds every call into Envoy. It makes no decisions, and does not panic on a status:
// a call that fails reports it to the caller, unless the failure has no effect.
package host
