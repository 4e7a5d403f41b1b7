package controlplanetest

import (
	"github.com/weir-proxy/weir/controlplane/internal/leases"
	"github.com/weir-proxy/weir/shared/lease"
	"github.com/weir-proxy/weir/shared/quota"
)

// takeBack takes tokens back once.
func (s *Store) takeBack(now quota.Instant, it leases.Item) (g lease.Grant) {
	back := it.Returns
	if s.returned[back.Name] && !s.TakesAgain {
		return g
	}
	c := change{at: now, bucket: it.Bucket, windowed: it.Ask.Windows.Quota != 0, known: true, returned: back.Name}
	if c.windowed {
		c.windows = s.windows[it.Bucket]
		var next lease.WindowLedger
		if next, g.Keep = c.windows.TakeBack(now, back.Term, back.Tokens); g.Keep > 0 {
			s.windows[it.Bucket] = next
		}
	} else {
		c.tokens = s.tokens[it.Bucket]
		var next lease.Ledger
		if next, g.Keep = c.tokens.TakeBack(now, back.Term, back.Tokens); g.Keep > 0 {
			s.tokens[it.Bucket] = next
		}
	}
	if g.Keep == 0 {
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
