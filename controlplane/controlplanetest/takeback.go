package controlplanetest

import (
	"github.com/weir-proxy/weir/controlplane/internal/grant/leases"
	"github.com/weir-proxy/weir/shared/lease"
	"github.com/weir-proxy/weir/shared/quota"
)

// takeBack takes tokens back once.
func (s *Store) takeBack(now quota.Instant, it leases.Item) (g lease.Grant) {
	back := it.Returns
	if s.returned[back.Name] {
		return g
	}
	if s.TakesUsed {
		back.Unused, back.Used = back.Unused+back.Used, 0
	}
	if s.TakesAgain {
		again := it
		again.Returns = leases.Return{Name: back.Name + 1, Term: back.Term, Back: back.Back}
		s.TakesAgain = false
		s.takeBack(now, again)
		s.TakesAgain = true
	}
	var done lease.Back
	c := change{at: now, bucket: it.Bucket, windowed: it.Ask.Windows.Quota != 0, known: true, returned: back.Name}
	takeBackDraft(now, it, s.draftTokens)
	takeBackDraft(now, it, s.draftWindows)
	if c.windowed {
		c.windows = s.windows[it.Bucket]
		var next lease.WindowLedger
		if next, done = c.windows.TakeBack(now, back.Term, back.Back); done != (lease.Back{}) {
			s.windows[it.Bucket] = next
		}
	} else {
		c.tokens = s.tokens[it.Bucket]
		var next lease.Ledger
		if next, done = c.tokens.TakeBack(now, back.Term, back.Back); done != (lease.Back{}) {
			s.tokens[it.Bucket] = next
		}
	}
	if g.Keep = done.Unused; done == (lease.Back{}) {
		return g
	}
	if s.returned == nil {
		s.returned = map[uint64]bool{}
	}
	s.returned[back.Name] = true
	s.Back += g.Keep
	s.journal = append(s.journal, c)
	return g
}

// undoReturn brings back the ledger that a return has changed.
func (s *Store) undoReturn(c change) {
	if c.windowed {
		s.windows[c.bucket] = c.windows
	} else {
		s.tokens[c.bucket] = c.tokens
	}
}
