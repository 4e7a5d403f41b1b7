package localstore

import (
	"context"
	"encoding/binary"
	"maps"

	"github.com/weir-proxy/weir/controlplane/internal/grant/leases"
	"github.com/weir-proxy/weir/shared/inflight"
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/lease"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/wire"
)

// permits holds the permits of a shard's buckets. The shard's lock guards it.
type permits struct {
	all map[hash]inflight.Ledger
	// dirty has the buckets whose permits differ from the file.
	dirty map[hash]struct{}
	// damaged is true if a record of the file could not be read: nodes may then hold more permits
	// than all contains.
	damaged bool
}

func (p *permits) init() {
	*p = permits{all: map[hash]inflight.Ledger{}, dirty: map[hash]struct{}{}}
}

func (p *permits) fileSuffix() byte { return permitsKey }

func (p *permits) markDirty(key hash) { p.dirty[key] = struct{}{} }

func (p *permits) load(key hash, value []byte, _ quota.Instant) bool {
	ledger, ok := decodePermits(value)
	if ok {
		p.all[key] = ledger
	}
	return ok
}

func (p *permits) changes(now quota.Instant, sweep bool, out []change) []change {
	if sweep {
		maps.DeleteFunc(p.all, func(key hash, l inflight.Ledger) bool {
			if !l.Forgettable(now) {
				return false
			}
			p.dirty[key] = struct{}{}
			return true
		})
	}
	for key := range p.dirty {
		c := change{key: append(key[:len(key):len(key)], permitsKey)}
		if l, ok := p.all[key]; ok {
			c.value = encodePermits(l)
		}
		out = append(out, c)
	}
	clear(p.dirty)
	return out
}

// claim answers a claim of permits. Its shard is locked.
func (l *ledgers) claim(now quota.Instant, bucket hash, c inflight.Claim) lease.Grant {
	h := l.of(bucket)
	p := &h.permits
	// Only nodes know the permits that were lost with the process.
	c.Doubt = leases.PermitsDoubtful(l.lost, now, inflight.RenewedIn)
	if p.damaged {
		c.Doubt = max(c.Doubt, leases.PermitsDoubtful(l.opened, now, inflight.RenewedIn))
	}
	ledger, known := p.all[bucket]
	if !known && h.room.lacks(len(p.all)) {
		return lease.Grant{}
	}
	ledger, a := ledger.Claim(now, c)
	p.all[bucket] = ledger
	p.dirty[bucket] = struct{}{}
	return leases.Permitted(a)
}

// Holders implements leases.Buckets.
func (s *Store) Holders(_ context.Context, bucket keyhash.Key) (l inflight.Ledger, now quota.Instant, err error) {
	h := s.ledgers.of(bucket)
	h.mu.Lock()
	defer h.mu.Unlock()
	now = s.clock.now()
	for _, one := range h.permits.all[bucket].Holdings {
		if one.Until > now {
			l.Holdings = append(l.Holdings, one)
		}
	}
	return l, now, nil
}

// encodePermits writes the format and then for each node its boot, and as varints its sequence
// number, permits, ceiling, want, end, and the length of its id, and then the id.
func encodePermits(l inflight.Ledger) []byte {
	b := encodeFields()
	for _, h := range l.Holdings {
		b = binary.BigEndian.AppendUint64(b, h.Node.Boot)
		for _, v := range [...]uint64{
			h.Seq, uint64(h.Permits), uint64(h.Ceiling), uint64(h.Want), uint64(h.Until), uint64(len(h.Node.ID)),
		} {
			b = binary.AppendUvarint(b, v)
		}
		b = append(b, h.Node.ID...)
	}
	return b
}

// decodePermits decodes permits. It refuses another format, damage, and numbers that no claim can
// have left.
func decodePermits(b []byte) (l inflight.Ledger, ok bool) {
	if len(b) == 0 || b[0] != ledgerFormat {
		return l, false
	}
	for b = b[1:]; len(b) > 0; {
		if len(b) < 8 || len(l.Holdings) == inflight.MaxNodes {
			return inflight.Ledger{}, false
		}
		h := inflight.Holding{Node: inflight.Node{Boot: binary.BigEndian.Uint64(b)}}
		b = b[8:]
		var fields [6]uint64
		for i := range fields {
			v, n := binary.Uvarint(b)
			if n <= 0 || v > 2*quota.MaxUnits {
				return inflight.Ledger{}, false
			}
			fields[i], b = v, b[n:]
		}
		n := fields[5]
		if n > wire.MaxNodeID || n > uint64(len(b)) {
			return inflight.Ledger{}, false
		}
		h.Seq, h.Permits, h.Ceiling = fields[0], int64(fields[1]), int64(fields[2])
		h.Want, h.Until = int64(fields[3]), quota.Instant(fields[4])
		h.Node.ID, b = string(b[:n]), b[n:]
		l.Holdings = append(l.Holdings, h)
	}
	return l, true
}
