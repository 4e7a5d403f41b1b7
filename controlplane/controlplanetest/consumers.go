package controlplanetest

import (
	"context"
	"time"

	"github.com/weir-proxy/weir/controlplane/internal/rules/consumers"
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/match"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/wire"
)

// Consumers are the limits that consumers have of their own. The control plane knows them at once,
// and a node by the View that it last took. The zero value has none.
type Consumers struct {
	records  map[keyhash.Key]consumers.Record
	revision uint64
	set      func() *policy.Set
}

// Own is a limit that a consumer has of its own.
type Own struct {
	Quota  int64
	Window quota.Span
}

// Put gives a consumer, by the value of a header, limits of its own under a policy, or takes them
// away if there are none.
func (c *Consumers) Put(header, value, name string, limits []Own) {
	c.revision++
	var r consumers.Record
	if len(limits) > 0 {
		own := consumers.Override{Policy: name}
		for _, l := range limits {
			own.Limits = append(own.Limits, consumers.Limit{Quota: l.Quota, Window: l.Window})
		}
		r.Overrides = []consumers.Override{own}
	}
	if c.records == nil {
		c.records = map[keyhash.Key]consumers.Record{}
	}
	key := match.ConsumerKey(secret, policy.Source{Kind: policy.SourceHeader, Name: header}, value)
	if before := c.records[key]; c.set != nil {
		r.Inherit([]*policy.Set{c.set()}, &before)
	}
	c.records[key] = r
}

// ExceptionsRevision implements leases.Overrides.
func (c *Consumers) ExceptionsRevision() uint64 { return c.revision }

// Known implements leases.Overrides.
func (c *Consumers) Known(_ context.Context, keys []keyhash.Key) (map[keyhash.Key]consumers.Knowledge, error) {
	known := map[keyhash.Key]consumers.Knowledge{}
	for _, k := range keys {
		known[k] = consumers.Knowledge{Record: c.records[k], ExceptionsRevision: c.revision}
	}
	return known, nil
}

// Refresh implements leases.Overrides.
func (c *Consumers) Refresh(context.Context) error { return nil }

// View returns the present records in the form in which nodes have them.
func (c *Consumers) View() match.Consumers {
	v := view{revision: c.revision, exceptions: map[keyhash.Key][]byte{}}
	for key, r := range c.records {
		v.exceptions[key] = wire.AppendExceptions(nil, r.Special(time.Time{}))
	}
	return v
}

type view struct {
	revision   uint64
	exceptions map[keyhash.Key][]byte
}

// Exceptions implements match.Consumers.
func (v view) Exceptions() (some bool, revision uint64) { return len(v.exceptions) > 0, v.revision }

// Find implements match.Consumers.
func (v view) Find(found *match.Consumer) {
	found.Exceptions, found.Sure = v.exceptions[found.Key], true
}
