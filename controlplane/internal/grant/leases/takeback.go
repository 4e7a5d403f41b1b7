package leases

import "github.com/weir-proxy/weir/shared/lease"

// Return says what has become of leased tokens of a Term. A store takes it as TakeBack of the
// bucket's ledgers does, and remembers the Name until the Term is over: it happens once, however
// often it is asked for. Keep of the grant is how many tokens went back.
type Return struct {
	Name uint64
	Term lease.Term
	lease.Back
}
