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

// tokenSlot is a slot of buckets of tokens: records of one size, as many as were ever wanted, up to entriesPerSlot. Where few keys are
// in use most slots have one, and every byte is copied several times for each request.
type tokenSlot struct {
	b    [maxTokenSlot]byte
	size int
	at   int
	// evicted: the record at the place is another entry's, which still says something.
	evicted bool
}

func (s *tokenSlot) open(value []byte) {
	s.size = len(value)
	if s.size <= maxTokenSlot && s.size >= recordsAt && (s.size-recordsAt)%entrySize == 0 && text.HasPrefix(value, tokenMagic) {
		copy(s.b[:], value)
		return
	}
	s.size = recordsAt
	clear(s.b[:recordsAt])
	copy(s.b[:], tokenMagic)
}

// find chooses for a new entry one more place or, where there is no more, that of the entry which is idle first.
func (s *tokenSlot) find(e *Entry, now quota.Instant, w *wanted) {
	kind, key := e.Kind, e.Key
	first, n := quota.Instant(0), (s.size-recordsAt)/entrySize
	own := -1
	w.begin()
	for i := range n {
		record := s.record(i)
		if Kind(record[atKind]) == kind && sameKey(record, &key) && e.decode(record) && w.is(e) {
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
	if own >= 0 {
		s.at, s.evicted = own, false
		e.decode(s.record(own))
		w.settle(e)
		return
	}
	if s.evicted = n == entriesPerSlot && first > now; n < entriesPerSlot {
		s.at = n
	}
	*e = Entry{Kind: kind, Key: key, New: true, Debtor: cell(s.b[:], &key)}
	w.settle(e)
}

func (s *tokenSlot) without() (value []byte) {
	last := (s.size-recordsAt)/entrySize - 1
	copy(s.record(s.at), s.record(last))
	s.size -= entrySize
	return s.b[:s.size]
}

// put leaves in its cell when the entry that goes would have been full. Leased entries leave nothing: the centre has counted
// their tokens as used.
func (s *tokenSlot) put(e *Entry, _ quota.Instant) (value []byte, evicted uint64) {
	record := s.record(s.at)
	if s.evicted {
		evicted = 1
		if Kind(record[atKind]) != Leased {
			var key keyhash.Key
			copy(key[:], record)
			remember(s.b[:], &key, quota.Instant((&coder{b: record, at: atIdle}).i64()))
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
