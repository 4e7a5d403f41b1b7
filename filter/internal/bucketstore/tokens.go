package bucketstore

import (
	"github.com/weir-proxy/weir/shared/match"
	"github.com/weir-proxy/weir/shared/quota"
)

const (
	tokenMagic    = "WRS1"
	tokenSlotSize = recordsAt + entriesPerSlot*entrySize
)

// tokenSlot is a slot of buckets of tokens: records of one size, each at a place of its own.
type tokenSlot struct {
	b       [tokenSlotSize]byte
	at      int
	evicted bool
}

func (s *tokenSlot) open(value []byte) {
	if len(value) == tokenSlotSize && hasMagic(value, tokenMagic) {
		copy(s.b[:], value)
		return
	}
	clear(s.b[:])
	copy(s.b[:], tokenMagic)
}

// find chooses for a new entry a free place or, evicted, the place of the entry that is idle first.
func (s *tokenSlot) find(e *Entry, now quota.Instant) {
	kind, key := e.Kind, e.Key
	first := quota.Instant(0)
	for i := range entriesPerSlot {
		record := s.record(i)
		if Kind(record[atKind]) == kind && sameKey(record, &key) && e.decode(record) {
			s.at, s.evicted = i, false
			return
		}
		idle := quota.Instant((&coder{b: record, at: atIdle}).i64())
		if i == 0 || idle < first {
			s.at, first = i, idle
		}
	}
	s.evicted = first > now
	*e = Entry{Kind: kind, Key: key, New: true, Debtor: cell(s.b[:], &key)}
}

// put leaves in its cell when the entry that goes would have been full. Leased entries leave nothing: the centre has counted
// their tokens as used.
func (s *tokenSlot) put(e *Entry, _ quota.Instant) (value []byte, evicted uint64) {
	record := s.record(s.at)
	if s.evicted {
		evicted = 1
		if Kind(record[atKind]) != Leased {
			var key match.Key
			copy(key[:], record)
			remember(s.b[:], &key, quota.Instant((&coder{b: record, at: atIdle}).i64()))
		}
	}
	e.encode(record)
	return s.b[:], evicted
}

func (s *tokenSlot) record(i int) []byte {
	from := recordsAt + i*entrySize
	return s.b[from : from+entrySize]
}
