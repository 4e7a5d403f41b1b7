package rlqs

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/weir-proxy/weir/controlplane/internal/calls"
	"github.com/weir-proxy/weir/controlplane/internal/policies"
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/match"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/wire"
)

// Sets are the versions of the policy set. *policies.Service implements it.
type Sets interface {
	Active() (policies.Active, <-chan struct{})
}

// Secrets has the secret that keys the hashes of buckets. *push.Hub implements it.
type Secrets interface{ Secret() ([16]byte, error) }

// Orders are the kill switches and bans. *enforcement.Service implements it.
type Orders interface {
	After(revision uint64, waited bool) (message []byte, news bool, changed <-chan struct{})
}

// Penalties are those of callers. *penalties.Service implements it.
type Penalties interface{ InForce(key keyhash.Key) bool }

// rules says what the policies in force make of a bucket. It is safe for concurrent use.
type rules struct {
	config Config

	mu       sync.Mutex
	set      *policies.Compiled
	index    match.Index
	matcher  match.Matcher
	gatherer calls.Gatherer
	orders   wire.Enforcement
	ordered  uint64
	// enforced is when the orders were last put in force: some end by themselves.
	enforced time.Time
}

// again is how often orders that may have ended are looked at.
const again = time.Second

// held is what the policies make of a bucket.
type held struct {
	access  match.Access
	version uint64
	hits    []hit
	// callers are whose requests the bucket counts, by the enforced policies with penalties.
	callers []caller
}

// caller is whose requests a bucket counts, as the penalties of one policy know it.
type caller struct {
	policy uint32
	key    keyhash.Key
	// everywhere: the penalty holds under every policy.
	everywhere bool
}

// hit is one limit of a bucket.
type hit struct {
	match.Hit
	policy *policy.Policy
	// limit is the policy's, or the caller's own in its place.
	limit policy.Limit
	// consumer and revision count if it is not certain that the limit is the right one.
	consumer keyhash.Key
	revision uint64
}

// hold holds a bucket against the policies; false while they are not known.
func (r *rules) hold(ctx context.Context, id ID) (h held, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.follow() {
		return h, false
	}
	a := r.attributes(id.Entries)
	a.Consumers = r.config.Consumers(ctx)
	h.version = r.set.Version.Number
	h.add(r, r.matcher.Match(&r.index, &a))
	for i := range r.set.Set.Policies {
		m := &r.set.Set.Policies[i].Match
		if h.access == match.Open && m.IsOfCalls() && isFor(m, id) {
			h.add(r, r.matcher.Only(&r.index, &a, uint32(i)))
		}
	}
	return h, true
}

// add adds what the matcher has found, whose memory is used again.
func (h *held) add(r *rules, result match.Result) {
	h.access = result.Access
	for _, found := range result.Hits {
		one := hit{
			Hit: found, policy: &r.set.Set.Policies[found.Policy], limit: *r.index.Limit(found.Limit),
			consumer: result.Consumer, revision: result.ExceptionsRevision,
		}
		if found.Own > 0 {
			one.limit = result.Own[found.Own-1]
		}
		h.hits = append(h.hits, one)
	}
	for _, s := range result.Subjects {
		if !s.Shadow {
			one := caller{policy: s.Policy, key: s.Key, everywhere: r.index.Penalty(s.Policy).All}
			h.callers = append(h.callers, one)
		}
	}
}

// isFor reports whether a policy for calls is for a bucket: its descriptor has the same entries. A
// bucket's entries have no order.
func isFor(m *policy.Match, id ID) bool {
	if m.Domain != "" && m.Domain != id.Domain {
		return false
	}
	if len(m.Descriptors) > 0 && len(m.Descriptors) != len(id.Entries) {
		return false
	}
	for i := range m.Descriptors {
		if value, has := id.Entries[m.Descriptors[i].Name]; !has || !m.Descriptors[i].Meets(value) {
			return false
		}
	}
	return true
}

// follow takes over the policy set and the orders in force.
func (r *rules) follow() bool {
	active, _ := r.config.Sets.Active()
	if active.Current == nil {
		return false
	}
	if r.set != active.Current {
		secret, err := r.config.Secrets.Secret()
		if err != nil {
			return false
		}
		set := active.Current
		r.set = nil
		snapshot := wire.Snapshot{Version: set.Version.Number, Secret: secret, Set: set.Set}
		if r.index.Load(wire.AppendSnapshot(nil, snapshot)) != nil {
			return false
		}
		r.set, r.enforced = set, time.Time{}
	}
	now := r.config.Now()
	message, news, _ := r.config.Orders.After(r.ordered, true)
	if news {
		if wire.DecodeEnforcement(message, &r.orders) != nil {
			return false
		}
		r.ordered, r.enforced = r.orders.Revision, time.Time{}
	}
	if now.Sub(r.enforced) >= again {
		r.index.Enforce(&r.orders, now.UnixMilli())
		r.enforced = now
	}
	return true
}

// attributes are what a bucket's entries say of its requests. Each entry is a value of a
// descriptor; some keys are those of attributes, too.
func (r *rules) attributes(entries map[string]string) match.Attributes {
	keys := slices.Sorted(maps.Keys(entries))
	r.gatherer.Begin()
	for _, key := range keys {
		r.gatherer.Add(calls.Entry{Key: key, Value: entries[key]})
	}
	a := r.gatherer.Attributes(&r.index)
	for _, key := range keys {
		a.Headers = append(a.Headers, match.Header{
			Name: []byte(policy.Descriptor(key).Name), Value: []byte(entries[key]),
		})
	}
	return a
}
