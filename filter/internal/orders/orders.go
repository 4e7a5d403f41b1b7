// Package orders keeps what operators have ordered beside the policy set, the kill switch above all, in Envoy's shared data: the
// leader's poll brings it, and every worker of the process obeys it from its next tick on, also while the control plane is away.
package orders

import (
	"encoding/binary"

	"github.com/weir-proxy/weir/filter/internal/bucketstore"
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/match"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/wire"
)

// SharedData is Envoy's shared data, with the one overwrite whose last writer is right.
type SharedData interface {
	bucketstore.SharedData
	Put(key, value []byte)
}

// Buckets are what this node keeps of buckets. *bucketstore.Store is one.
type Buckets interface {
	Update(kind bucketstore.Kind, key keyhash.Key, now quota.Instant, c bucketstore.Change) error
}

// Clock tells the time that Buckets go by.
type Clock interface{ Now() quota.Instant }

// Orders is one VM's view. Make one with New.
type Orders struct {
	// InForce and Bans are how many orders and banned keys have not ended, as of the last Tick.
	InForce, Bans uint64

	shared  SharedData
	buckets Buckets
	clock   Clock
	// The version is the revision and a checksum: it is read at each tick, the message only when it has changed.
	versionKey, messageKey [5]byte
	version                [16]byte
	unix, nextEnd          int64

	body    []byte
	message wire.Enforcement
	// heard is for a message that is looked at before it is shared.
	heard wire.Enforcement
}

// New makes an Orders in the name space.
func New(shared SharedData, buckets Buckets, clock Clock, space [4]byte) *Orders {
	o := &Orders{shared: shared, buckets: buckets, clock: clock}
	copy(o.versionKey[:], space[:])
	copy(o.messageKey[:], space[:])
	o.versionKey[4], o.messageKey[4] = 'o', 'e'
	return o
}

// Revision is that of what is obeyed, 0 before there was anything.
func (o *Orders) Revision() uint64 { return o.message.Revision }

// Changed takes in what the poll has brought, for all VMs: each obeys it from its next Tick on.
func (o *Orders) Changed(body []byte) error {
	if err := wire.DecodeEnforcement(body, &o.heard); err != nil {
		return err
	}
	for i := range o.heard.Freed {
		if one := &o.heard.Freed[i]; one.Revision > o.message.Revision {
			o.forget(one)
		}
	}
	sum := uint64(14695981039346656037)
	for _, c := range body {
		sum = (sum ^ uint64(c)) * 1099511628211
	}
	var version [16]byte
	binary.LittleEndian.PutUint64(version[:], o.heard.Revision)
	binary.LittleEndian.PutUint64(version[8:], sum)
	// The message goes first: a version is only ever seen with it or with a newer one.
	o.shared.Put(o.messageKey[:], body)
	o.shared.Put(o.versionKey[:], version[:])
	return nil
}

// forget forgets what this node knows of a bucket beside the tokens in hand.
func (o *Orders) forget(f *wire.Freed) {
	now := o.clock.Now()
	for kind := bucketstore.Local; kind <= bucketstore.Optimistic; kind++ {
		if f.Full || kind == bucketstore.Leased {
			// Under contention a refusal stays in place until it ends by itself.
			_ = o.buckets.Update(kind, f.Bucket, now, forget{})
		}
	}
}

// forget is the change that does it.
type forget struct{}

// Apply implements bucketstore.Change.
func (forget) Apply(e *bucketstore.Entry) bool {
	if e.New {
		return false
	}
	e.State.Debt, e.History.Marks, e.Tab.Debt = 0, e.History.Marks[:0], 0
	c := &e.Credit
	c.NotBefore, c.AskAfter, c.Short, c.FullAt, c.Told = 0, 0, 0, 0, 0
	return true
}

// Tick reads what the leader has shared, and says whether what is to be obeyed is another than before: then Bind must be called.
// Unix is the time in milliseconds.
func (o *Orders) Tick(unix int64) (changed bool) {
	o.unix = unix
	changed = o.nextEnd != 0 && unix >= o.nextEnd
	value, _, found := o.shared.Get(o.versionKey[:])
	var version [16]byte
	if found && copy(version[:], value) == len(version) && version != o.version {
		if value, _, found = o.shared.Get(o.messageKey[:]); found && wire.DecodeEnforcement(value, &o.heard) == nil {
			o.version, o.body = version, append(o.body[:0], value...)
			changed = wire.DecodeEnforcement(o.body, &o.message) == nil
		}
	}
	if changed {
		o.nextEnd, o.InForce, o.Bans = 0, 0, 0
		for i := range o.message.Orders {
			o.count(&o.InForce, o.message.Orders[i].Expires)
		}
		for i := range o.message.Bans {
			o.count(&o.Bans, o.message.Bans[i].Expires)
		}
	}
	return changed
}

// count counts what has not ended, and notes when it will.
func (o *Orders) count(n *uint64, expires int64) {
	if expires != 0 && expires <= o.unix {
		return
	}
	*n++
	if expires != 0 && (o.nextEnd == 0 || expires < o.nextEnd) {
		o.nextEnd = expires
	}
}

// Bind has a policy set obey.
func (o *Orders) Bind(ix *match.Index) { ix.Obey(&o.message, o.unix) }
