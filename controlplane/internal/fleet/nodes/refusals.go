package nodes

import (
	"cmp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/weir-proxy/weir/shared/wire"
)

// maxRefusals bounds the addresses that are remembered. Those that call on come back at once.
const maxRefusals = 1000

// Refusal is an address whose calls as a node are refused: an Envoy there enforces nothing that it
// has not been sent before, and no list of nodes has it.
type Refusal struct {
	Address string
	// Node is the id by which the last call that gave one called itself; nothing confirms it.
	Node string
	// Reason is why the last call was refused, as a sentence.
	Reason string
	// Calls is how many were refused since First.
	Calls       int64
	First, Last time.Time
}

// Active reports whether an address was refused so lately that what is there still calls.
func (r Refusal) Active(now time.Time) bool { return now.Sub(r.Last) < Counted }

// refusals are remembered by this replica alone. The zero value has none.
type refusals struct {
	mu        sync.Mutex
	byAddress map[string]*Refusal
}

// Refuse notes that a call from an address was refused. Node is what it calls itself, empty if it
// does not say.
func (r *Registry) Refuse(address, node, reason string) {
	now := r.now()
	all := &r.refusals
	all.mu.Lock()
	defer all.mu.Unlock()
	one := all.byAddress[address]
	if one == nil {
		all.makeRoom(now)
		one = &Refusal{Address: address, First: now}
		all.byAddress[address] = one
	}
	one.Node = cmp.Or(clean(node, wire.MaxNodeID), one.Node)
	one.Reason = clean(reason, 256)
	one.Calls++
	one.Last = now
}

// makeRoom forgets the addresses that have not called for long, and one more if all is full.
func (all *refusals) makeRoom(now time.Time) {
	if all.byAddress == nil {
		all.byAddress = map[string]*Refusal{}
	}
	if len(all.byAddress) < maxRefusals {
		return
	}
	var oldest *Refusal
	for address, one := range all.byAddress {
		if now.Sub(one.Last) >= Forgotten {
			delete(all.byAddress, address)
		} else if oldest == nil || one.Last.Before(oldest.Last) {
			oldest = one
		}
	}
	if len(all.byAddress) >= maxRefusals {
		delete(all.byAddress, oldest.Address)
	}
}

// Refusals are the addresses from which calls of nodes were refused within Forgotten, those of the
// last call first.
func (r *Registry) Refusals() (list []Refusal) {
	now := r.now()
	all := &r.refusals
	all.mu.Lock()
	for _, one := range all.byAddress {
		if now.Sub(one.Last) < Forgotten {
			list = append(list, *one)
		}
	}
	all.mu.Unlock()
	slices.SortFunc(list, func(a, b Refusal) int {
		return cmp.Or(b.Last.Compare(a.Last), strings.Compare(a.Address, b.Address))
	})
	return list
}

// RefusedNow is from how many addresses calls of nodes are refused now.
func (r *Registry) RefusedNow() (n int) {
	now := r.now()
	for _, one := range r.Refusals() {
		if one.Active(now) {
			n++
		}
	}
	return n
}
