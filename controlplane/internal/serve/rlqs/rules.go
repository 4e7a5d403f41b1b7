package rlqs

import (
	"context"
	"maps"
	"slices"
	"sync"

	"github.com/weir-proxy/weir/controlplane/internal/serve/calls"
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/match"
	"github.com/weir-proxy/weir/shared/policy"
)

// Penalties are the penalties of callers. *penalties.Service implements it.
type Penalties interface{ InForce(key keyhash.Key) bool }

// rules applies the policies in force to a bucket. It is safe for concurrent use.
type rules struct {
	config Config

	mu       sync.Mutex
	matcher  match.Matcher
	gatherer calls.Gatherer
	entries  []calls.Entry
}

// held is the result of the policies for a bucket.
type held struct {
	access  match.Access
	version uint64
	hits    []hit
	// callers are the callers of the bucket's requests, for the enforced policies with penalties.
	callers []caller
}

// caller is the caller of a bucket's requests, as the penalties of one policy know it.
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
	// limit is the policy's limit, or the caller's own limit in its place.
	limit policy.Limit
	// consumer and revision are for the store, which may know newer limits of the consumer.
	consumer keyhash.Key
	revision uint64
}

// holdBucket finds the limits of a bucket in the policies; false while there are no policies.
func (r *rules) holdBucket(ctx context.Context, id ID) (h held, ok bool) {
	view := r.config.View()
	if view == nil {
		return h, false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	a := r.attributes(view, id.Entries)
	a.Consumers = r.config.Consumers(ctx)
	h.version = view.Version
	h.addResult(view, r.matcher.Match(&view.Index, &a))
	each := func(number uint32) {
		if h.access == match.Open || h.access == match.Exempt {
			h.addResult(view, r.matcher.MatchOne(&view.Index, &a, number, h.access))
		}
	}
	view.FindAnyOrder(id.Domain, nil, each)
	if len(r.entries) > 0 {
		view.FindAnyOrder(id.Domain, r.entries, each)
	}
	return h, true
}

// addResult adds the matcher's result. It copies the result, because the matcher uses its memory
// again.
func (h *held) addResult(view *calls.View, result match.Result) {
	h.access = result.Access
	for _, found := range result.Hits {
		one := hit{
			Hit: found, policy: &view.Set.Policies[found.Policy], limit: *view.Index.Limit(found.Limit),
			consumer: result.Consumer, revision: result.ExceptionsRevision,
		}
		if found.Own > 0 {
			one.limit = result.Own[found.Own-1]
		}
		h.hits = append(h.hits, one)
	}
	for _, s := range result.Subjects {
		if !s.Shadow {
			one := caller{policy: s.Policy, key: s.Key, everywhere: view.Index.Penalty(s.Policy).All}
			h.callers = append(h.callers, one)
		}
	}
}

// attributes returns the attributes of a bucket's requests. Each entry is a value of a descriptor.
// Some keys are also keys of attributes.
func (r *rules) attributes(view *calls.View, entries map[string]string) match.Attributes {
	r.entries = r.entries[:0]
	for _, key := range slices.Sorted(maps.Keys(entries)) {
		r.entries = append(r.entries, calls.Entry{Key: key, Value: entries[key]})
	}
	r.gatherer.Begin()
	for _, e := range r.entries {
		r.gatherer.Add(e)
	}
	a := r.gatherer.Attributes(&view.Index)
	for _, e := range r.entries {
		a.Headers = append(a.Headers, match.Header{
			Name: []byte(policy.Descriptor(e.Key).Name), Value: []byte(e.Value),
		})
	}
	return a
}
