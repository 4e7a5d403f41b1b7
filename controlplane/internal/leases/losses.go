package leases

import (
	"github.com/weir-proxy/weir/shared/lease"
	"github.com/weir-proxy/weir/shared/quota"
)

// LostFill is the share of its burst, in percent, with which a bucket starts whose state the store has lost, unless the
// operator says otherwise.
const LostFill = 50

// Leased is how long tokens of an ask may be used at most after they were granted.
func Leased(a lease.Ask) quota.Span { return max(a.TTL(), lease.Deadline) }

// DoubtfulFor is how long after a loss of state an absent bucket of tokens may be one that was in use: until the last of its ledger
// can have become forgettable.
func DoubtfulFor(a lease.Ask) quota.Span { return a.Params.Window() + 2*a.TTL() + 2*lease.Deadline }

// DoubtfulUntil is until when an absent bucket may be one that was in use when the store lost its state: when any ledger of the
// ask's figures becomes forgettable that had leased what it could just before. 0 if no state was lost.
func DoubtfulUntil(lost quota.Instant, a lease.Ask) quota.Instant {
	if lost <= 0 {
		return 0
	}
	if a.Windows.Quota != 0 {
		return a.Windows.Counts(lost + quota.Instant(Leased(a)))
	}
	return lost + quota.Instant(DoubtfulFor(a))
}
