package inflight

import (
	"encoding/binary"
	"errors"

	"github.com/weir-proxy/weir/filter/internal/base/shareddata"
	"github.com/weir-proxy/weir/shared/inflight"
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/text"
)

const (
	slotMagic = "WRF2"
	// keysPerSlot sizes the table. If all keys of the table of buckets are in flight, a slot has
	// keysPerSlot of them.
	keysPerSlot = 8
	// maxSlot bounds the value of a slot. A larger value is refused.
	maxSlot    = 1 << 16
	headSize   = 16 + 2
	fixedSize  = 4 + 8
	holderSize = 4 + 4
	// hasPermits in the limit of a cell means that the cell has permits.
	hasPermits  = 1 << 31
	permitsSize = 8 * permitNumbers
)

// errContended: other workers changed the slot at every attempt, or it is full.
var errContended = errors.New("cannot change the places: the slot changed at every attempt, or is full")

// table keeps cells in shared data, in a fixed number of slots. A slot has the cells of its keys
// with requests in flight and no other cells, so its size is bounded by the number of requests in
// flight.
//
// A slot's value is slotMagic and its cells, each: key 16, length of the rest 2, limit 4,
// generation 8, and for each holder: worker 4, places 4. If the highest bit of the limit is set,
// the numbers of the permits come before the holders, 8 each.
type table struct {
	shared shareddata.Data
	slots  uint64
	key    [8]byte
	// value is the slot's value, and next its changed value.
	value, next []byte
	cell        inflight.Cell
}

// newTable makes a table whose size all workers of the name space agree on.
func newTable(shared shareddata.Data, space shareddata.Space, keys int) table {
	var slots [4]byte
	binary.LittleEndian.PutUint32(slots[:], uint32(max(keys/keysPerSlot, 1)))
	// In a table of another size a worker would not find the places of other workers.
	shareddata.Agree(shared, space.Key(shareddata.InFlightSlots), slots[:])
	t := table{shared: shared, slots: uint64(max(binary.LittleEndian.Uint32(slots[:]), 1))}
	copy(t.key[:], space[:])
	t.key[4] = byte(shareddata.InFlightSlot)
	return t
}

// updateCell applies a change to the cell of a key. A missing cell is empty.
func (t *table) updateCell(key *keyhash.Key, c *change) error {
	slot := binary.LittleEndian.Uint64(key[:8]) % t.slots
	t.key[5], t.key[6], t.key[7] = byte(slot), byte(slot>>8), byte(slot>>16)
	for range maxAttempts {
		value, cas, found := t.shared.Get(t.key[:])
		t.value = append(t.value[:0], value...)
		from, to := t.findCell(key)
		if !c.apply(&t.cell) {
			return nil
		}
		if !t.replaceCell(key, from, to) {
			return errContended
		}
		if shareddata.Swap(t.shared, t.key[:], t.next, cas, found) {
			return nil
		}
	}
	return errContended
}

// findCell decodes the cell of a key, and returns its range in the value. A value that no filter
// can have written counts as empty.
func (t *table) findCell(key *keyhash.Key) (from, to int) {
	t.cell = inflight.Cell{Holders: t.cell.Holders[:0]}
	b := t.value
	if !text.HasPrefix(b, slotMagic) {
		t.value = b[:0]
		return 0, 0
	}
	found := false
	from, to = len(b), len(b)
	for at := len(slotMagic); at < len(b); {
		if at+headSize > len(b) {
			return t.resetDamaged()
		}
		end := at + headSize + int(binary.LittleEndian.Uint16(b[at+16:]))
		if end > len(b) || end < at+headSize+fixedSize {
			return t.resetDamaged()
		}
		if !found && text.Equal(b[at:at+16], key[:]) {
			from, to, found = at, end, true
			t.decodeCell(b[at+headSize : end])
		}
		at = end
	}
	return from, to
}

// resetDamaged replaces a damaged value by an empty value.
func (t *table) resetDamaged() (from, to int) {
	t.value = t.value[:0]
	t.cell = inflight.Cell{Holders: t.cell.Holders[:0]}
	return 0, 0
}

// decodeCell decodes a cell from its bytes behind the head.
func (t *table) decodeCell(b []byte) {
	c, limit := &t.cell, binary.LittleEndian.Uint32(b)
	c.Limit, c.Generation = int64(limit&^hasPermits), binary.LittleEndian.Uint64(b[4:])
	b = b[fixedSize:]
	if limit&hasPermits != 0 && len(b) >= permitsSize {
		c.Permits = decodePermits(b)
		b = b[permitsSize:]
	}
	for ; len(b) >= holderSize; b = b[holderSize:] {
		places := int64(binary.LittleEndian.Uint32(b[4:]))
		c.Holders = append(c.Holders, inflight.Holder{Worker: binary.LittleEndian.Uint32(b), Places: places})
	}
}

// replaceCell makes the slot's next value: the cell replaces the bytes from from to to. A cell
// without holders and permits is left out. It reports false if the value is too long.
func (t *table) replaceCell(key *keyhash.Key, from, to int) bool {
	c, limit, size, permits := &t.cell, uint32(t.cell.Limit), 0, 0
	if !c.Permits.None() {
		limit, permits = limit|hasPermits, permitsSize
	}
	if permits+len(c.Holders) > 0 {
		size = headSize + fixedSize + permits + holderSize*len(c.Holders)
	}
	// Compute the new size, and make room for it.
	total := max(len(t.value), len(slotMagic)) - (to - from) + size
	if total > maxSlot && total > len(t.value) {
		return false
	}
	if cap(t.next) < total {
		t.next = make([]byte, total, 2*total)
	}
	t.next = t.next[:total]
	// Copy the other cells.
	at := copy(t.next, slotMagic)
	if len(t.value) > at {
		at += copy(t.next[at:], t.value[at:from])
		at += copy(t.next[at:], t.value[to:])
	}
	if size == 0 {
		return true
	}
	// Write the cell at the end.
	b := t.next[at:]
	copy(b, key[:])
	binary.LittleEndian.PutUint16(b[16:], uint16(size-headSize))
	binary.LittleEndian.PutUint32(b[18:], limit)
	binary.LittleEndian.PutUint64(b[22:], c.Generation)
	b = b[headSize+fixedSize:]
	if permits > 0 {
		encodePermits(b, &c.Permits)
	}
	for i, h := range c.Holders {
		b := b[permits+holderSize*i:]
		binary.LittleEndian.PutUint32(b, h.Worker)
		binary.LittleEndian.PutUint32(b[4:], uint32(h.Places))
	}
	return true
}

const permitNumbers = 12

func encodePermits(b []byte, p *inflight.Permits) {
	used := int64(0)
	if p.Used {
		used = 1
	}
	for i, n := range [permitNumbers]int64{
		p.Count, int64(p.Until), int64(p.Seq), int64(p.Sent), p.Need, p.Hold, p.Free, p.Recorded, int64(p.Pause),
		int64(p.Again), used, int64(p.Doubt),
	} {
		binary.LittleEndian.PutUint64(b[8*i:], uint64(n))
	}
}

func decodePermits(b []byte) inflight.Permits {
	var n [permitNumbers]int64
	for i := range n {
		n[i] = int64(binary.LittleEndian.Uint64(b[8*i:]))
	}
	return inflight.Permits{
		Count: n[0], Until: quota.Instant(n[1]), Seq: uint64(n[2]), Sent: quota.Instant(n[3]),
		Need: n[4], Hold: n[5], Free: n[6], Recorded: n[7], Pause: quota.Span(n[8]), Again: quota.Instant(n[9]),
		Used: n[10] != 0, Doubt: quota.Instant(n[11]),
	}
}
