package calls

import (
	"slices"
	"strings"

	"github.com/weir-proxy/weir/shared/match"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/wire"
)

// View is a policy set with the orders that are in force beside it, ready for calls. It is
// immutable.
type View struct {
	Index   match.Index
	Set     *policy.Set
	Version uint64
	// inOrder are the policies that are for calls, by the keys of a descriptor as they come;
	// anyOrder by its keys in alphabetical order.
	inOrder, anyOrder shapes
	// ends is the end of the first order or ban to end, in Unix milliseconds; 0 for never.
	ends int64
}

// NewView makes the view of a policy set, given also as its snapshot, with orders at a Unix time in
// milliseconds.
func NewView(snapshot []byte, set *policy.Set, orders *wire.Enforcement, unix int64) (*View, error) {
	v := &View{Set: set}
	if err := v.Index.Load(snapshot); err != nil {
		return nil, err
	}
	v.Version = v.Index.Version()
	v.Index.Enforce(orders, unix)
	for i := range orders.Orders {
		v.endsBy(orders.Orders[i].Expires, unix)
	}
	for i := range orders.Bans {
		v.endsBy(orders.Bans[i].Expires, unix)
	}
	for i := range set.Policies {
		m := &set.Policies[i].Match
		if !m.IsOfCalls() {
			continue
		}
		v.inOrder.addShape(m.Domain, shape{uint32(i), m.Descriptors})
		sorted := slices.SortedStableFunc(slices.Values(m.Descriptors), func(a, b policy.EntryMatch) int {
			return strings.Compare(a.Name, b.Name)
		})
		v.anyOrder.addShape(m.Domain, shape{uint32(i), sorted})
	}
	return v, nil
}

func (v *View) endsBy(expires, unix int64) {
	if expires > unix && (v.ends == 0 || expires < v.ends) {
		v.ends = expires
	}
}

// Find calls each for every policy for calls of the domain with a descriptor of these entries.
// Without entries it calls each for every policy for calls of the domain that names no descriptor.
// keys is memory to reuse, which Find returns.
func (v *View) Find(domain string, entries []Entry, keys []byte, each func(number uint32)) []byte {
	return v.inOrder.findPolicies(domain, entries, keys, each)
}

// FindAnyOrder does the same as Find for entries without a meaningful order. They must be sorted by
// key.
func (v *View) FindAnyOrder(domain string, sorted []Entry, each func(number uint32)) {
	v.anyOrder.findPolicies(domain, sorted, nil, each)
}

// shape describes the descriptors that a policy, given by its number, is for.
type shape struct {
	number     uint32
	conditions []policy.EntryMatch
}

// shapes holds the policies' shapes by domain, and then by the keys of the entries. The domain is
// empty for policies of any domain. Policies for no descriptor have no keys. The zero value is
// empty.
type shapes map[string]map[string][]shape

func (s *shapes) addShape(domain string, one shape) {
	var keys []byte
	for i := range one.conditions {
		keys = appendKey(keys, one.conditions[i].Name)
	}
	if *s == nil {
		*s = shapes{}
	}
	byKeys := (*s)[domain]
	if byKeys == nil {
		byKeys = map[string][]shape{}
		(*s)[domain] = byKeys
	}
	byKeys[string(keys)] = append(byKeys[string(keys)], one)
}

// appendKey appends the key of an entry to the keys before it. It writes the length before each
// key, so that two lists of keys never look alike.
func appendKey(keys []byte, key string) []byte {
	return append(append(keys, byte(len(key)>>8), byte(len(key))), key...)
}

// findPolicies calls back for the policies of a domain, and then for the policies of any domain.
func (s shapes) findPolicies(domain string, entries []Entry, keys []byte, each func(number uint32)) []byte {
	keys = keys[:0]
	for i := range entries {
		if len(entries[i].Key) > policy.MaxKey {
			return keys // No policy has such a key.
		}
		keys = appendKey(keys, entries[i].Key)
	}
	for _, one := range s[domain][string(keys)] {
		one.callIfMet(entries, each)
	}
	if domain != "" {
		for _, one := range s[""][string(keys)] {
			one.callIfMet(entries, each)
		}
	}
	return keys
}

// callIfMet calls back if the values of a descriptor's entries meet the policy's conditions. The
// keys are already the right keys.
func (s shape) callIfMet(entries []Entry, each func(number uint32)) {
	for i := range s.conditions {
		if !s.conditions[i].Meets(entries[i].Value) {
			return
		}
	}
	each(s.number)
}
