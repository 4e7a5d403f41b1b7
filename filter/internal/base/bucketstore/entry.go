package bucketstore

import (
	"encoding/binary"
	"math"

	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/lease"
	"github.com/weir-proxy/weir/shared/quota"
)

// Kind is the kind of an entry. A key may have an entry of each kind.
type Kind uint8

// Local is a token bucket that this node decides. Share is the node's part of a central bucket
// while the control plane is away. Leased has the tokens that the control plane has leased. Window
// is a bucket that this node decides and that counts in windows. Optimistic has this node's use of
// a bucket, which it reports afterwards.
const (
	Local Kind = iota + 1
	Share
	Leased
	Window
	Optimistic
)

// Entry is one bucket in the form that a Change reads. A new entry has only Kind, Key, New, Debtor,
// Owes and Heir set.
type Entry struct {
	Kind Kind
	Key  keyhash.Key
	New  bool
	// Debtor is set on a new entry whose key may have been evicted while tokens were missing. An
	// evicted bucket of its cell may not be full before Debtor, so the new bucket must start with
	// that debt. An Heir has it too. Owes is the most tokens that such a bucket in windows counted.
	Debtor quota.Instant
	Owes   int64
	// Heir: a Local, Share or Window entry began with a debt that another bucket may have owed, and
	// that debt is not repaid yet.
	Heir bool

	// State and Params are the state and the figures of a Local or Share entry. Generation orders
	// the figures, for a Window entry too; a Change sets it.
	State      quota.State
	Params     quota.Params
	Generation uint64
	// History and Windows are for a Window entry. A Change may append to the marks. Ahead is the
	// time by which the history's clock is ahead of the table's clock; a Change sets it if the two
	// differ.
	History quota.History
	Windows quota.Windows
	Ahead   quota.Span
	// Account is for an Optimistic entry, which earns by Params.
	Account lease.Account
	// Credit is for a Leased entry.
	Credit lease.Credit
	// Limit identifies the limit that Credit is about, or the limit of a Local or Share entry whose
	// callers bring figures of their own; it is 0 in other entries.
	Limit uint32
}

// idleFrom returns the instant from which the entry equals an absent entry.
func (e *Entry) idleFrom() quota.Instant {
	switch e.Kind {
	case Leased:
		return e.Credit.Idle()
	case Optimistic:
		return e.Account.Idle(e.Params)
	case Window:
		return e.Windows.Forgettable(&e.History) - quota.Instant(e.Ahead)
	}
	return e.Params.Forgettable(e.State)
}

// An entry's record, little-endian: key 16, kind 1, short, stale or heir 1, recheck 1, pad 1, limit
// 4, idle 8, then
//
//	local, share   debt 8, last 8, num 8, den 8, burst 8, generation 8, over 8, gone 8
//	optimistic     num 8, den 8, burst 8, unknown 8, reported 8, sent 8, debt 8, heard 8, since 8,
//	               last 8, unit 8, rests 8
//	leased         twice expiry 8, tokens 4, used 4 and term 4, not before 8, demand at 8,
//	               ask after 4 and keep call 4 from there, deny cost 4, demand 4, level 8,
//	               full at 8, shown full at 8
//
// and zeros up to its size.
const (
	atKind    = 16
	atShort   = 17
	atRecheck = 18
	atLimit   = 20
	atIdle    = 24
	atPayload = 32
	entrySize = atPayload + 96
	// Flags in the byte of recheck.
	flagRecheck, flagDoubt = 1, 2
	// Flags in the byte of short, for an Optimistic entry.
	flagStale, flagInherited = 1, 2
)

// decode reads a record. It reports false for a record that no filter can have written, because the
// arithmetic needs valid figures.
func (e *Entry) decode(b []byte) bool {
	*e = Entry{Kind: Kind(b[atKind])}
	copy(e.Key[:], b)
	c := coder{b: b, at: atPayload}
	// An account, or a bucket.
	switch e.Kind {
	case Optimistic:
		e.Params = c.params()
		e.Account = lease.Account{
			Unknown: c.i64(), Reported: c.i64(), Sent: quota.Instant(c.i64()),
			Debt: c.i64(), Heard: quota.Instant(c.i64()),
			Since: quota.Instant(c.i64()), Last: quota.Instant(c.i64()), Unit: c.i64(), Rests: quota.Instant(c.i64()),
		}
		t := &e.Account
		t.Stale, t.Inherited = b[atShort]&flagStale != 0, b[atShort]&flagInherited != 0
		t.Doubt = b[atRecheck] != 0
		c.at = atLimit
		t.Resting = c.u32()
		return isPossible(e.Params) && t.Unknown >= 0 && t.Reported >= 0 && t.Debt >= 0 && t.Unit >= 0
	case Local, Share:
		e.State = quota.State{Debt: c.i64(), Last: quota.Instant(c.i64())}
		e.Params = c.params()
		e.Generation = uint64(c.i64())
		e.State.Over, e.State.Gone = c.i64(), quota.Instant(c.i64())
		e.Heir = b[atShort] != 0
		c.at = atLimit
		e.Limit = uint32(c.u32())
		return e.State.Debt >= 0 && e.State.Over >= 0 && e.State.Over <= 2*quota.MaxUnits && isPossible(e.Params)
	}
	// A credit.
	for i := range e.Credit.Leases {
		e.Credit.Leases[i].Expiry = quota.Instant(c.i64())
		e.Credit.Leases[i].Tokens = c.u32()
		e.Credit.Leases[i].Used = c.u32()
		e.Credit.Leases[i].Term = lease.Term(c.u32())
	}
	e.Credit.NotBefore, e.Credit.DemandAt = quota.Instant(c.i64()), quota.Instant(c.i64())
	e.Credit.AskAfter, e.Credit.KeepCall = c.near(e.Credit.DemandAt), c.near(e.Credit.DemandAt)
	e.Credit.DenyCost, e.Credit.Demand, e.Credit.Level = c.u32(), c.u32(), c.i64()
	e.Credit.FullAt, e.Credit.ShownFullAt = quota.Instant(c.i64()), quota.Instant(c.i64())
	e.Credit.Short, e.Credit.Recheck = b[atShort], b[atRecheck]&flagRecheck != 0
	e.Credit.Doubt = b[atRecheck]&flagDoubt != 0
	c.at = atLimit
	e.Limit = uint32(c.u32())
	return true
}

// isPossible reports whether figures can come from a limit or from a share of a limit.
func isPossible(p quota.Params) bool {
	return p.Num > 0 && p.Den > 0 && p.Burst > 0 && p.Burst <= 2*quota.MaxUnits/p.Den
}

// encode writes the record of an entry.
func (e *Entry) encode(b []byte) {
	clear(b[:entrySize])
	copy(b, e.Key[:])
	b[atKind] = byte(e.Kind)
	c := coder{b: b, at: atIdle}
	c.putI64(int64(e.idleFrom()))
	// An account, or a bucket.
	switch e.Kind {
	case Optimistic:
		t := e.Account
		c.putParams(e.Params)
		for _, v := range [...]int64{
			t.Unknown, t.Reported, int64(t.Sent), t.Debt, int64(t.Heard), int64(t.Since), int64(t.Last),
			t.Unit, int64(t.Rests),
		} {
			c.putI64(v)
		}
		if t.Stale {
			b[atShort] |= flagStale
		}
		if t.Inherited {
			b[atShort] |= flagInherited
		}
		if t.Doubt {
			b[atRecheck] = 1
		}
		c.at = atLimit
		c.putU32(t.Resting)
		return
	case Local, Share:
		e.encodeBucket(c)
		return
	}
	// A credit.
	for _, held := range e.Credit.Leases {
		c.putI64(int64(held.Expiry))
		c.putU32(held.Tokens)
		c.putU32(held.Used)
		c.putU32(int64(held.Term))
	}
	c.putI64(int64(e.Credit.NotBefore))
	c.putI64(int64(e.Credit.DemandAt))
	c.putNear(e.Credit.AskAfter, e.Credit.DemandAt)
	c.putNear(e.Credit.KeepCall, e.Credit.DemandAt)
	c.putU32(e.Credit.DenyCost)
	c.putU32(e.Credit.Demand)
	c.putI64(e.Credit.Level)
	c.putI64(int64(e.Credit.FullAt))
	c.putI64(int64(e.Credit.ShownFullAt))
	b[atShort] = e.Credit.Short
	if e.Credit.Recheck {
		b[atRecheck] |= flagRecheck
	}
	if e.Credit.Doubt {
		b[atRecheck] |= flagDoubt
	}
	c.at = atLimit
	c.putU32(int64(e.Limit))
}

// encodeBucket writes the payload of a Local or Share entry.
func (e *Entry) encodeBucket(c coder) {
	if e.Heir {
		c.b[atShort] = 1
	}
	c.putI64(e.State.Debt)
	c.putI64(int64(e.State.Last))
	c.putParams(e.Params)
	c.putI64(int64(e.Generation))
	c.putI64(e.State.Over)
	c.putI64(int64(e.State.Gone))
	c.at = atLimit
	c.putU32(int64(e.Limit))
}

// coder reads and writes little-endian numbers in a record of known size.
type coder struct {
	b  []byte
	at int
}

func (c *coder) i64() int64 {
	c.at += 8
	return int64(binary.LittleEndian.Uint64(c.b[c.at-8:]))
}

func (c *coder) params() quota.Params {
	return quota.Params{Num: c.i64(), Den: c.i64(), Burst: c.i64()}
}

func (c *coder) putParams(p quota.Params) {
	c.putI64(p.Num)
	c.putI64(p.Den)
	c.putI64(p.Burst)
}

func (c *coder) u32() int64 {
	c.at += 4
	return int64(binary.LittleEndian.Uint32(c.b[c.at-4:]))
}

// near reads an instant that was written by putNear.
func (c *coder) near(at quota.Instant) quota.Instant { return at + quota.Instant(int32(c.u32())) }

// putNear writes an instant within half an hour of another instant. An instant in the past stays in
// the past.
func (c *coder) putNear(v, at quota.Instant) {
	c.at += 4
	near := min(max(v-at, math.MinInt32), math.MaxInt32)
	binary.LittleEndian.PutUint32(c.b[c.at-4:], uint32(int32(near)))
}

func (c *coder) putI64(v int64) {
	c.at += 8
	binary.LittleEndian.PutUint64(c.b[c.at-8:], uint64(v))
}

// putU32 saturates. It is for counts that may be too small without harm.
func (c *coder) putU32(v int64) {
	c.at += 4
	binary.LittleEndian.PutUint32(c.b[c.at-4:], uint32(min(max(v, 0), 1<<32-1)))
}
