package lease

import "github.com/weir-proxy/weir/shared/quota"

// Charge counts a grant, whether or not the ledger has as much.
func Charge(l Ledger, now quota.Instant, ask Ask, g Grant) Ledger {
	l = l.At(now, ask)
	l.lendTokens(g.Waiting*ask.Cost, ask.Deadline, waitingPieces)
	l.lendTokens(g.Keep, ask.TTL(), pieces)
	return l
}
