package rls

import (
	"github.com/weir-proxy/weir/controlplane/internal/calls"
	"github.com/weir-proxy/weir/shared/match"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/wire"
)

// View is a policy set with the orders that are in force beside it, ready for calls. It is
// immutable.
type View struct {
	index   match.Index
	set     *policy.Set
	version uint64
	// of are the policies that are for calls, by domain and then by the keys of the entries of a
	// descriptor; those for no descriptor have no keys.
	of map[string]map[string][]uint32
	// anywhere are those of them that are for any domain.
	anywhere map[string][]uint32
	// ends is when the first of the orders or bans ends, in Unix milliseconds; 0 for never.
	ends int64
}

// NewView makes the view of a policy set, given also as its snapshot, with orders at a Unix time in
// milliseconds.
func NewView(snapshot []byte, set *policy.Set, orders *wire.Enforcement, unix int64) (*View, error) {
	v := &View{set: set, of: map[string]map[string][]uint32{}, anywhere: map[string][]uint32{}}
	if err := v.index.Load(snapshot); err != nil {
		return nil, err
	}
	v.version = v.index.Version()
	v.index.Enforce(orders, unix)
	for i := range orders.Orders {
		v.endsBy(orders.Orders[i].Expires, unix)
	}
	for i := range orders.Bans {
		v.endsBy(orders.Bans[i].Expires, unix)
	}
	for i := range set.Policies {
		if m := &set.Policies[i].Match; m.IsOfCalls() {
			v.add(uint32(i), m)
		}
	}
	return v, nil
}

func (v *View) endsBy(expires, unix int64) {
	if expires > unix && (v.ends == 0 || expires < v.ends) {
		v.ends = expires
	}
}

func (v *View) add(number uint32, m *policy.Match) {
	var keys []byte
	for i := range m.Descriptors {
		keys = appendKey(keys, m.Descriptors[i].Name)
	}
	byKeys := v.anywhere
	if m.Domain != "" {
		byKeys = v.of[m.Domain]
		if byKeys == nil {
			byKeys = map[string][]uint32{}
			v.of[m.Domain] = byKeys
		}
	}
	byKeys[string(keys)] = append(byKeys[string(keys)], number)
}

// appendKey appends the key of an entry to those before it. Each comes with its length, so that two
// lists of keys never look alike.
func appendKey(keys []byte, key string) []byte {
	return append(append(keys, byte(len(key)>>8), byte(len(key))), key...)
}

// find calls back for each policy that is for calls of a domain with a descriptor of these entries;
// without entries, for each that is for calls and for no descriptor. Keys is memory to use.
func (v *View) find(domain string, entries []calls.Entry, keys []byte, each func(number uint32)) []byte {
	keys = keys[:0]
	for i := range entries {
		if len(entries[i].Key) > policy.MaxKey {
			return keys // No policy has such a key.
		}
		keys = appendKey(keys, entries[i].Key)
	}
	for _, byKeys := range [...]map[string][]uint32{v.of[domain], v.anywhere} {
		for _, number := range byKeys[string(keys)] {
			if meet(v.set.Policies[number].Match.Descriptors, entries) {
				each(number)
			}
		}
	}
	return keys
}

// meet reports whether the entries of a descriptor, whose keys are the right ones, have the values
// that a policy is for.
func meet(conditions []policy.EntryMatch, entries []calls.Entry) bool {
	for i := range conditions {
		if !conditions[i].Meets(entries[i].Value) {
			return false
		}
	}
	return true
}
