package leases

import (
	"github.com/weir-proxy/weir/shared/lease"
	"github.com/weir-proxy/weir/shared/quota"
)

// LostFill is the share of its burst, in percent, with which a bucket starts after the store has
// lost its state. Operators can set another.
const LostFill = 50

// Leased is the longest time for which the tokens of an ask may be used after their grant.
func Leased(a lease.Ask) quota.Span { return max(a.TTL(), lease.Deadline) }

// DoubtfulFor is how long after a loss of state an absent bucket of tokens may have been in use:
// until its ledger, had it been kept, would surely be forgettable.
func DoubtfulFor(a lease.Ask) quota.Span { return a.Params.Window() + 2*a.TTL() + 2*lease.Deadline }

// InDoubt reports whether a bucket may lack unused tokens, by a grant that tells: it may have
// started with a share of its burst because the store had lost its state, up to the last moment at
// which absent buckets do, and lacks the rest for as long again.
func InDoubt(lost, now quota.Instant, percent int64, a lease.Ask, g lease.Grant) bool {
	burst := max(a.Params.Burst, a.Windows.Quota)
	return lost > 0 && g.Tells() && lease.Fill(burst, percent) < burst &&
		now < DoubtfulUntil(DoubtfulUntil(lost, a), a)
}

// DoubtfulUntil is until when an absent bucket may have been in use when the store lost its state:
// then every ledger of the ask's figures is forgettable that had leased all it could just before
// the loss. It is 0 if no state was lost.
func DoubtfulUntil(lost quota.Instant, a lease.Ask) quota.Instant {
	if lost <= 0 {
		return 0
	}
	if a.Windows.Quota != 0 {
		return a.Windows.Counts(lost + quota.Instant(Leased(a)))
	}
	return lost + quota.Instant(DoubtfulFor(a))
}
