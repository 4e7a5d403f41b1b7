package limiter

// Source says where a decision on one hit came from.
type Source uint8

// This node's own bucket; tokens in hand; this node within its slack of an optimistic bucket; the centre, for this very request;
// this node's share of the limit; the last step of the failure ladder, or a bucket whose contention goes by the same setting; what
// the centre said before, that it has nothing yet; the request itself, which lacks a key or costs too much; and a bound, of
// waiting requests or of attempts at a bucket.
const (
	ByLocal Source = iota
	ByLease
	ByOptimistic
	ByCentral
	ByShare
	ByFailureAllow
	ByFailureDeny
	ByCachedDenial
	ByRequest
	ByOverload
	Sources
)

// sources are by what decides a hit.
var sources = [...]Source{
	byBucket: ByLocal, byCredit: ByLease, byTab: ByOptimistic, byTicket: ByCentral, byShare: ByShare, byAllow: ByFailureAllow, byDeny: ByFailureDeny,
}

// refusedBy is the source of a refusal.
func (h *Hit) refusedBy(reason Reason) Source {
	switch {
	case reason == Absent, reason == BadCost, reason == TooDear:
		return ByRequest
	case reason == TooManyWaiting, reason == Contended:
		return ByOverload
	case h.by == byCredit:
		return ByCachedDenial
	}
	return sources[h.by]
}
