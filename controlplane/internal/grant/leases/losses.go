package leases

import (
	"github.com/weir-proxy/weir/shared/lease"
	"github.com/weir-proxy/weir/shared/quota"
)

// LostFill is the default fill of a bucket whose state the store has lost, in percent of its burst.
const LostFill = 50

// Leased returns the longest time in which tokens of an ask may be used after their grant.
func Leased(a lease.Ask) quota.Span { return max(a.TTL(), lease.Deadline) }

// DoubtfulFor returns the time after a loss of state in which an absent bucket of tokens may have
// been in use: after that time its ledger, if it was kept, would certainly be forgotten.
func DoubtfulFor(a lease.Ask) quota.Span { return a.Params.Window() + 2*a.TTL() + 2*lease.Deadline }

// Lacks reports whether a lost bucket may lack tokens of the ask's caller; percent is the fill of
// lost buckets. If callers bring their own figures, a caller with larger figures may have been the
// first: half of those may be more than this caller has.
func Lacks(percent int64, a lease.Ask) bool {
	burst := max(a.Params.Burst, a.Windows.Quota, a.Most.Burst)
	return lease.Fill(burst, percent) < burst
}

// InDoubt reports whether a bucket may lack unused tokens. It may have started with a share of its
// burst because the store had lost its state. Absent buckets start so until DoubtfulUntil, and lack
// the rest for the same time again.
func InDoubt(lost, now quota.Instant, percent int64, a lease.Ask) bool {
	return lost > 0 && Lacks(percent, a) && now < DoubtfulUntil(DoubtfulUntil(lost, a), a)
}

// DoubtfulUntil returns the time until which an absent bucket may have been in use when the store
// lost its state. At that time every ledger with the ask's figures can be forgotten, even if all
// its tokens were leased just before the loss. It is 0 if no state was lost.
func DoubtfulUntil(lost quota.Instant, a lease.Ask) quota.Instant {
	if lost <= 0 {
		return 0
	}
	if a.Windows.Quota != 0 {
		return a.Windows.Counts(lost + quota.Instant(Leased(a)))
	}
	return lost + quota.Instant(DoubtfulFor(a))
}
