package leases

import "github.com/weir-proxy/weir/shared/lease"

// Return reports the use of leased tokens of a Term. A store applies it like TakeBack of the
// bucket's ledgers, and remembers the Name until the Term is over, so that it is applied only once.
// Keep of the grant is the number of tokens that went back.
type Return struct {
	Name uint64
	Term lease.Term
	lease.Back
}
