// Package enforcement keeps the enforcement orders of operators, such as the kill switch, in
// Envoy's shared data. The leader's poll brings them, and every worker of the process applies them
// from its next tick on, even while the control plane is away.
package enforcement

import (
	"encoding/binary"

	"github.com/weir-proxy/weir/filter/internal/base/bucketstore"
	"github.com/weir-proxy/weir/filter/internal/base/rpc"
	"github.com/weir-proxy/weir/filter/internal/base/shareddata"
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/match"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/text"
	"github.com/weir-proxy/weir/shared/wire"
)

// Buckets are the buckets of this node. *bucketstore.Store implements it.
type Buckets interface {
	Update(kind bucketstore.Kind, key keyhash.Key, now quota.Instant, c bucketstore.Change) error
}

// View gives one VM access to the orders. Make a View with New.
type View struct {
	// InForce is the number of orders that had not ended at the last Tick, and Bans the number of
	// such banned keys.
	InForce, Bans uint64

	buckets Buckets
	clock   rpc.Clock
	// shared is the message. Its version is the revision and a checksum.
	shared        shareddata.Document
	unix, nextEnd int64

	body    []byte
	message wire.Enforcement
	// heard is a buffer for a message that is checked before it is shared.
	heard wire.Enforcement
}

// New makes a View in the name space.
func New(data shareddata.Data, buckets Buckets, clock rpc.Clock, space shareddata.Space) *View {
	return &View{
		buckets: buckets, clock: clock,
		shared: shareddata.NewDocument(data, space, shareddata.EnforcementVersion, shareddata.Enforcement),
	}
}

// Revision returns the revision in force, 0 before the first.
func (v *View) Revision() uint64 { return v.message.Revision }

// Changed publishes the polled message to all VMs. Each VM applies it from its next Tick on.
func (v *View) Changed(body []byte) error {
	if err := wire.DecodeEnforcement(body, &v.heard); err != nil {
		return err
	}
	for i := range v.heard.Freed {
		if one := &v.heard.Freed[i]; one.Revision > v.message.Revision {
			v.forgetBucket(one)
		}
	}
	// If the message cannot be published, no VM reads it, and the next poll brings it again.
	_ = v.shared.Publish(versionOf(v.heard.Revision, body), body)
	return nil
}

// versionOf returns a message's version in shared data.
func versionOf(revision uint64, body []byte) (version shareddata.Version) {
	binary.LittleEndian.PutUint64(version[:], revision)
	binary.LittleEndian.PutUint64(version[8:], uint64(text.NewHash64.Add(body)))
	return version
}

// forgetBucket drops this node's knowledge of a bucket, except the node's tokens. The control plane
// decides for an optimistic bucket that is not full now until it has sent the bucket's level.
func (v *View) forgetBucket(f *wire.Freed) {
	now := v.clock.Now()
	for kind := bucketstore.Local; kind <= bucketstore.Optimistic; kind++ {
		if f.Full || kind == bucketstore.Leased || kind == bucketstore.Optimistic {
			// Under contention a refusal stays in place until it ends by itself.
			_ = v.buckets.Update(kind, f.Bucket, now, forget{f.Full})
		}
	}
}

// forget is the change that forgets one entry. full: the bucket is full now.
type forget struct{ full bool }

// Apply implements bucketstore.Change.
func (f forget) Apply(e *bucketstore.Entry) bool {
	if e.New {
		return false
	}
	if e.Kind == bucketstore.Optimistic && !f.full {
		e.Account.Stale = true
		return true
	}
	e.State.Debt, e.History.Marks, e.Account.Debt = 0, e.History.Marks[:0], 0
	c := &e.Credit
	c.NotBefore, c.AskAfter, c.Short, c.FullAt, c.ShownFullAt = 0, 0, 0, 0, 0
	return true
}

// Tick reads the published message, and reports whether other orders are in force than before. Then
// the caller must call Bind. Unix is the time in milliseconds.
func (v *View) Tick(unix int64) (changed bool) {
	v.unix = unix
	changed = v.nextEnd != 0 && unix >= v.nextEnd
	if version, message, news := v.shared.News(); news && v.apply(version, message) {
		v.shared.Take(version)
		changed = true
	}
	if changed {
		v.nextEnd, v.InForce, v.Bans = 0, 0, 0
		for i := range v.message.Orders {
			v.countUnended(&v.InForce, v.message.Orders[i].Expires)
		}
		for i := range v.message.Bans {
			v.countUnended(&v.Bans, v.message.Bans[i].Expires)
		}
	}
	return changed
}

// apply puts a message into force, and reports whether it could. A message whose content does not
// match its version stays out of force, and the revision does not change.
func (v *View) apply(version shareddata.Version, message []byte) bool {
	if wire.DecodeEnforcement(message, &v.heard) != nil || versionOf(v.heard.Revision, message) != version {
		return false
	}
	v.body = append(v.body[:0], message...)
	return wire.DecodeEnforcement(v.body, &v.message) == nil
}

// countUnended counts an order or a ban that has not ended, and notes the next end.
func (v *View) countUnended(n *uint64, expires int64) {
	if expires != 0 && expires <= v.unix {
		return
	}
	*n++
	if expires != 0 && (v.nextEnd == 0 || expires < v.nextEnd) {
		v.nextEnd = expires
	}
}

// Bind applies the orders to a policy set.
func (v *View) Bind(ix *match.Index) { ix.Enforce(&v.message, v.unix) }
