package bucketstore

import (
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/text"
)

const (
	tokenMagic   = "WRS2"
	maxTokenSlot = recordsAt + entriesPerSlot*entrySize
)

// tokenSlot is a slot of token buckets: records of one size, up to entriesPerSlot. It grows with
// the number of records needed at once, because each request copies every byte several times, and
// with few keys in use most slots have one bucket.
type tokenSlot struct {
	b    [maxTokenSlot]byte
	size int
	at   int
	// evicted: the record at this place is of another entry, which is not idle yet.
	evicted bool
}

func (s *tokenSlot) open(value []byte) {
	s.size = len(value)
	if s.size <= maxTokenSlot && s.size >= recordsAt && (s.size-recordsAt)%entrySize == 0 &&
		text.HasPrefix(value, tokenMagic) {
		copy(s.b[:], value)
		return
	}
	s.size = recordsAt
	clear(s.b[:recordsAt])
	copy(s.b[:], tokenMagic)
}

// findEntry gives a new entry a free place. If there is none, the new entry replaces the entry that
// is idle first.
func (s *tokenSlot) findEntry(e *Entry, now quota.Instant, w *wanted) {
	kind, key := e.Kind, e.Key
	first, n := quota.Instant(0), (s.size-recordsAt)/entrySize
	own := -1
	// Look for the entry, and for the record that is idle first.
	for i := range n {
		record := s.record(i)
		if Kind(record[atKind]) == kind && sameKey(record, &key) && e.decode(record) && w.matches(e) {
			own = i
			if w == nil {
				break
			}
		}
		idle := quota.Instant((&coder{b: record, at: atIdle}).i64())
		if i == 0 || idle < first {
			s.at, first = i, idle
		}
	}
	// The entry is there.
	if own >= 0 {
		s.at, s.evicted = own, false
		if w != nil {
			e.decode(s.record(own)) // The loop has decoded others since.
		}
		if e.Heir {
			e.Debtor = cellOf(s.b[:], &key)
		}
		return
	}
	// The entry is new: it gets a free place, or the place of the record that is idle first.
	s.evicted = n == entriesPerSlot && first > now
	if n < entriesPerSlot {
		s.at = n
	}
	*e = Entry{Kind: kind, Key: key, New: true, Debtor: cellOf(s.b[:], &key)}
}

func (s *tokenSlot) valueWithout() (value []byte) {
	last := (s.size-recordsAt)/entrySize - 1
	copy(s.record(s.at), s.record(last))
	s.size -= entrySize
	return s.b[:s.size]
}

// putEntry notes in the cell of an evicted entry when that entry would have been full. A Leased
// entry needs no note, because the control plane has counted its tokens as used.
func (s *tokenSlot) putEntry(e *Entry, _ quota.Instant) (value []byte, evicted uint64) {
	record := s.record(s.at)
	if s.evicted {
		evicted = 1
		if Kind(record[atKind]) != Leased {
			var key keyhash.Key
			copy(key[:], record)
			rememberDebt(s.b[:], &key, quota.Instant((&coder{b: record, at: atIdle}).i64()))
		}
	}
	e.encode(record)
	s.size = max(s.size, recordsAt+(s.at+1)*entrySize)
	return s.b[:s.size], evicted
}

func (s *tokenSlot) record(i int) []byte {
	from := recordsAt + i*entrySize
	return s.b[from : from+entrySize]
}
