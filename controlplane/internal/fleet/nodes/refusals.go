package nodes

import (
	"cmp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/weir-proxy/weir/shared/wire"
)

// maxRefusals bounds the remembered addresses. An address that still calls is added again at once.
const maxRefusals = 1000

// Refusal is an address whose calls as a node are refused. An Envoy there only enforces the
// policy set that it has, and is in no list of nodes.
type Refusal struct {
	Address string
	// Node is the id that the caller gave last; nothing confirms it.
	Node string
	// Reason is the reason of the last refusal, as a sentence.
	Reason string
	// Calls is the number of refused calls since First.
	Calls       int64
	First, Last time.Time
}

// Active reports whether the last refusal is so recent that the caller probably still calls.
func (r Refusal) Active(now time.Time) bool { return now.Sub(r.Last) < Counted }

// refusals are remembered only by this replica. The zero value is empty.
type refusals struct {
	mu        sync.Mutex
	byAddress map[string]*Refusal
}

// Refuse records the refusal of a call from an address. node is the caller's own name, empty if it
// gave none.
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
	one.Node = cmp.Or(cleanText(node, wire.MaxNodeID), one.Node)
	one.Reason = cleanText(reason, 256)
	one.Calls++
	one.Last = now
}

// makeRoom forgets addresses that have not called for long, and one address more if there is still
// no room.
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

// Refusals returns the addresses from which calls of nodes were refused within Forgotten, the
// latest first.
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

// RefusedNow returns the number of addresses from which calls of nodes are refused now.
func (r *Registry) RefusedNow() (n int) {
	now := r.now()
	for _, one := range r.Refusals() {
		if one.Active(now) {
			n++
		}
	}
	return n
}
