package rls

import "github.com/weir-proxy/weir/shared/wire"

// Wait finishes all background work of a call before the call is answered.
func (s *Service) Wait() { s.beside = func(f func()) { f() } }

// Full fills all places of calls at the store.
func (s *Service) Full() {
	for s.asking.Take() {
	}
}

// Take is the report that Run would send.
func (s *Service) Take() *wire.Decisions { return s.recorder.takeReport(toInstant(s.config.Now())) }

// WithMetadata has allowed calls answered with metadata too.
func (s *Service) WithMetadata() { s.config.Metadata = true }

// MaxShares bounds the buckets of Held.
const MaxShares = maxShares

// Held is how many buckets of its own the service has, and how much else it keeps: calls with the
// store, and callers that a report is to have.
func (s *Service) Held() (shares, others int) {
	m := &s.recorder.message
	places := len(s.asking) + len(s.looks.places) + len(s.watching)
	return len(s.shares.buckets), places + len(m.Counts) + len(m.Refusals) + len(m.Callers)
}

// LooksAtOnce and MaxLookers bound the looks of penalised calls.
const (
	LooksAtOnce = looksAtOnce
	MaxLookers  = maxLookers
)

// Lookers is how many callers there are whose looks are remembered.
func (s *Service) Lookers() int { return len(s.looks.callers) }
