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

// Lacks reports whether a bucket whose state is lost may lack tokens of the ask's caller, where
// lost buckets start with a percentage of their burst. If callers bring figures of their own, one
// with larger figures may have been the first, and half of these may be more than this one has.
func Lacks(percent int64, a lease.Ask) bool {
	burst := max(a.Params.Burst, a.Windows.Quota, a.Most.Burst)
	return lease.Fill(burst, percent) < burst
}

// InDoubt reports whether a bucket may lack unused tokens: it may have started with a share of its
// burst because the store had lost its state, up to the last moment at which absent buckets do, and
// lacks the rest for as long again.
func InDoubt(lost, now quota.Instant, percent int64, a lease.Ask) bool {
	return lost > 0 && Lacks(percent, a) && now < DoubtfulUntil(DoubtfulUntil(lost, a), a)
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
