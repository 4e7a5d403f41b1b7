package bucketstore

import (
	"encoding/binary"
	"math"

	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/text"
)

const (
	windowMagic = "WRW2"
	// maxWindowSlot bounds a slot. One entry always fits: it has at most MaxMarks marks, and if
	// there are many marks, the times between them and the counts of a log are small.
	maxWindowSlot = 4096

	// A window entry's record: its size 2, key 16, idle 8, then the bytes that decodeWindows reads.
	recordKey    = 2
	recordIdle   = recordKey + 16
	recordRest   = recordIdle + 8
	maxHistories = entriesPerSlot
	// flagHeir is in the byte of the algorithm.
	flagHeir = 1 << 7
)

// windowSlot is a slot of histories: records of any size, one after the other.
type windowSlot struct {
	value   []byte
	records [maxHistories]windowRecord
	n       int
	own     int // the index of the entry that is being changed, -1 for a new entry
	next    []byte
	marks   []quota.Mark
	other   Entry
}

// windowRecord is the range of a record in the value, and the instant from which its entry equals
// an absent entry.
type windowRecord struct {
	from, to int
	idle     quota.Instant
}

func (s *windowSlot) open(value []byte) {
	s.value, s.n = nil, 0
	if len(value) < recordsAt || len(value) > maxWindowSlot || !text.HasPrefix(value, windowMagic) {
		return
	}
	s.value = value
	for from := recordsAt; s.n < maxHistories && from+recordRest <= len(value); s.n++ {
		to := from + int(binary.LittleEndian.Uint16(value[from:]))
		if to < from+recordRest || to > len(value) {
			return
		}
		idle := quota.Instant((&coder{b: value, at: from + recordIdle}).i64())
		s.records[s.n] = windowRecord{from, to, idle}
		from = to
	}
}

func (s *windowSlot) findEntry(e *Entry, _ quota.Instant, w *wanted) {
	key := e.Key
	s.own = -1
	for at := 0; at < s.n; at++ {
		if !sameKey(s.value[s.records[at].from+recordKey:], &key) {
			continue
		}
		switch {
		case !s.readRecord(e, key, at):
			s.n--
			s.records[at] = s.records[s.n]
			at--
		case w.matches(e):
			s.own = at
		}
		if w == nil && s.own >= 0 {
			return
		}
	}
	if s.own < 0 {
		*e = Entry{Kind: Window, Key: key, New: true, History: quota.History{Marks: s.marks[:0]}}
		if s.value != nil {
			e.Debtor, e.Owes = windowCell(s.value, &key)
		}
	} else {
		s.readRecord(e, key, s.own)
	}
}

// readRecord decodes a record. It reports false for a record that no filter can have written.
func (s *windowSlot) readRecord(e *Entry, key keyhash.Key, at int) bool {
	r := s.records[at]
	*e = Entry{Kind: Window, Key: key, History: quota.History{Marks: s.marks[:0]}}
	good := e.decodeWindows(s.value[r.from+recordRest : r.to])
	s.marks = e.History.Marks[:0]
	if e.Heir {
		e.Debtor, _ = windowCell(s.value, &key)
	}
	return good
}

func (s *windowSlot) valueWithout() (value []byte) {
	s.next = append(s.next[:0], s.value[:recordsAt]...)
	for i, r := range s.records[:s.n] {
		if i != s.own {
			s.next = append(s.next, s.value[r.from:r.to]...)
		}
	}
	return s.next
}

// putEntry writes e, and the other entries that are not idle and fit.
func (s *windowSlot) putEntry(e *Entry, now quota.Instant) (value []byte, evicted uint64) {
	// The value begins with the magic and the cells, and e comes first.
	if s.value != nil {
		s.next = append(s.next[:0], s.value[:recordsAt]...)
	} else {
		s.next = append(s.next[:0], windowMagic...)
		for len(s.next) < recordsAt {
			s.next = append(s.next, 0)
		}
	}
	s.next = e.appendWindows(s.next)
	s.marks = e.History.Marks[:0]
	// Idle entries are left out.
	kept, size := 0, len(s.next)
	for i, r := range s.records[:s.n] {
		if i != s.own && r.idle > now {
			s.records[kept] = r
			kept++
			size += r.to - r.from
		}
	}
	// While the value is too large, evict the entry with the least weight; its cell keeps its debt.
	for ; kept == maxHistories || size > maxWindowSlot; evicted++ {
		first, least := 0, s.weightOf(s.records[0], now)
		for i, r := range s.records[1:kept] {
			if weight := s.weightOf(r, now); weight < least {
				first, least = i+1, weight
			}
		}
		r := s.records[first]
		var key keyhash.Key
		copy(key[:], s.value[r.from+recordKey:])
		tokens, _ := s.countedTokens(r)
		rememberWindow(s.next, &key, r.idle, tokens, now)
		kept--
		size -= r.to - r.from
		s.records[first] = s.records[kept]
	}
	for _, r := range s.records[:kept] {
		s.next = append(s.next, s.value[r.from:r.to]...)
	}
	return s.next, evicted
}

// weightOf returns the importance of an entry: the part of its quota that it counts, times the
// remaining time for which it counts.
func (s *windowSlot) weightOf(r windowRecord, now quota.Instant) float64 {
	tokens, quota := s.countedTokens(r)
	return float64(tokens) / float64(quota) * float64(r.idle-now)
}

// countedTokens returns the most tokens that a record counts, and its quota.
func (s *windowSlot) countedTokens(r windowRecord) (tokens, quota int64) {
	e := &s.other
	e.History.Marks = e.History.Marks[:0]
	if !e.decodeWindows(s.value[r.from+recordRest : r.to]) {
		return math.MaxInt64, 1
	}
	tokens = e.Windows.Admitted(&e.History)
	return tokens, e.Windows.Quota
}

// appendWindows appends e's record. Marks are whole grains apart, so most numbers take a byte or
// two: the distance of the first mark from the history's time, then for each mark its count and the
// grains to the next mark.
func (e *Entry) appendWindows(dst []byte) []byte {
	from, w, h := len(dst), e.Windows, &e.History
	dst = append(append(dst, 0, 0), e.Key[:]...)
	dst = binary.LittleEndian.AppendUint64(dst, uint64(e.idleFrom()))
	dst = binary.LittleEndian.AppendUint64(dst, uint64(h.Last))
	dst = binary.LittleEndian.AppendUint64(dst, e.Generation)
	algorithm := byte(w.Algorithm)
	if e.Heir {
		algorithm |= flagHeir
	}
	dst = append(dst, algorithm)
	until := int64(max(h.Until-h.Last, 0))
	for _, n := range [6]int64{w.Quota, int64(w.Length), int64(w.Grain), int64(w.Offset), int64(h.Reach), until} {
		dst = binary.AppendUvarint(dst, uint64(n))
	}
	before := h.Last
	for i, m := range h.Marks {
		if i == 0 {
			dst = binary.AppendVarint(dst, int64(m.Start-before))
		} else {
			dst = binary.AppendUvarint(dst, uint64(m.Start-before)/uint64(w.Grain))
		}
		dst = binary.AppendUvarint(dst, uint64(m.Count))
		before = m.Start
	}
	binary.LittleEndian.PutUint16(dst[from:], uint16(len(dst)-from))
	return dst
}

// decodeWindows reads a record from behind its idle time. It reports false for a record that no
// filter can have written.
func (e *Entry) decodeWindows(b []byte) bool {
	r := varints{b: b}
	h := &e.History
	// Read the figures, and check each of them.
	h.Last, e.Generation = quota.Instant(r.u64()), r.u64()
	algorithm := r.byte()
	e.Heir, algorithm = algorithm&flagHeir != 0, algorithm&^flagHeir
	units, length := int64(r.unsigned()), quota.Span(r.unsigned())
	grain, offset := quota.Span(r.unsigned()), quota.Span(r.unsigned())
	reach, until := quota.Span(r.unsigned()), quota.Span(r.unsigned())
	const most = 3 * quota.MaxWindow
	if r.bad || reach < 0 || reach > most || until < 0 || until > most || int(algorithm) >= quota.AlgorithmCount {
		return false
	}
	w, err := quota.NewWindows(quota.Algorithm(algorithm), units, length, 1)
	if err != nil || grain != w.Grain && !w.Algorithm.Divided() {
		return false
	}
	w.Grain, w.Offset = grain, offset
	if !w.Sound() {
		return false
	}
	e.Windows = w
	h.Reach, h.Until = reach, 0
	if reach > 0 {
		h.Until = h.Last + quota.Instant(until)
	}
	// Read the marks.
	span, counted := max(4*length, reach), w.MostCounted()
	at := h.Last
	for len(r.b) > 0 && len(h.Marks) < quota.MaxMarks {
		if len(h.Marks) == 0 {
			at += quota.Instant(r.signed())
		} else {
			grains := r.unsigned()
			r.bad = r.bad || grains < 1 || grains > uint64(2*span/grain)
			at += quota.Instant(grains) * quota.Instant(grain)
		}
		count := int64(r.unsigned())
		if r.bad || count < 1 || count > counted ||
			at < h.Last-quota.Instant(span) || at > h.Last+4*quota.Instant(length) {
			return false
		}
		h.Marks = append(h.Marks, quota.Mark{Start: at, Count: count})
	}
	return len(r.b) == 0
}

// varints reads numbers from the front of b until one is missing.
type varints struct {
	b   []byte
	bad bool
}

func (r *varints) u64() uint64 {
	if len(r.b) < 8 {
		r.bad = true
		return 0
	}
	v := binary.LittleEndian.Uint64(r.b)
	r.b = r.b[8:]
	return v
}

func (r *varints) byte() byte {
	if len(r.b) < 1 {
		r.bad = true
		return 0
	}
	v := r.b[0]
	r.b = r.b[1:]
	return v
}

func (r *varints) unsigned() uint64 {
	v, n := binary.Uvarint(r.b)
	if n <= 0 {
		r.bad = true
		return 0
	}
	r.b = r.b[n:]
	return v
}

func (r *varints) signed() int64 {
	v, n := binary.Varint(r.b)
	if n <= 0 {
		r.bad = true
		return 0
	}
	r.b = r.b[n:]
	return v
}
