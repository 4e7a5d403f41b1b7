package localstore

import (
	"encoding/binary"

	"github.com/weir-proxy/weir/shared/lease"
	"github.com/weir-proxy/weir/shared/quota"
)

const (
	ledgerFormat = 1
	// longFormat is the format of a ledger that ends with since, over and gone, or of windows that
	// end with since, released and kept.
	longFormat = 2
)

// encodeLedger writes the format and then, as varints, version, last, debt, num, den, burst, each
// pair, and since, over and gone if one of the first two is not 0.
func encodeLedger(l lease.Ledger) []byte {
	b := encodeFields(int64(l.Version), int64(l.Last), l.Debt, l.Params.Num, l.Params.Den, l.Params.Burst)
	for _, p := range l.Pairs {
		b = binary.AppendUvarint(binary.AppendUvarint(b, uint64(p.End)), uint64(p.Tokens))
	}
	if l.Since > 0 || l.Over > 0 {
		b[0] = longFormat
		for _, n := range [...]int64{int64(l.Since), l.Over, int64(l.Gone)} {
			b = binary.AppendUvarint(b, uint64(n))
		}
	}
	return b
}

// encodeWindows writes the format and then, as varints, version, last, algorithm, quota, length,
// grain, offset, reach, until and each mark. The start of a mark is the distance from the mark
// before it.
func encodeWindows(l lease.WindowLedger) []byte {
	w := l.Windows
	b := encodeFields(int64(l.Version), int64(l.History.Last), int64(w.Algorithm), w.Quota,
		int64(w.Length), int64(w.Grain), int64(w.Offset), int64(l.History.Reach), int64(l.History.Until))
	var before quota.Instant
	for _, m := range l.History.Marks {
		b = binary.AppendUvarint(binary.AppendUvarint(b, uint64(m.Start-before)), uint64(m.Count))
		before = m.Start
	}
	if h := &l.History; h.Since > 0 || h.Released > 0 {
		b[0] = longFormat
		b = binary.AppendUvarint(binary.AppendUvarint(b, uint64(h.Since)), uint64(h.Released))
		b = binary.AppendUvarint(b, uint64(h.Kept))
	}
	return b
}

func encodeFields(fields ...int64) []byte {
	b := append(make([]byte, 0, 64), ledgerFormat)
	for _, v := range fields {
		b = binary.AppendUvarint(b, uint64(v))
	}
	return b
}

// hasFields reports whether there are the fixed numbers and at most this number of pairs.
func hasFields(fields []int64, fixed, pairs int) bool {
	return len(fields) >= fixed && (len(fields)-fixed)%2 == 0 && len(fields) <= fixed+2*pairs
}

// decodeFormat reads the numbers of a state. It refuses another format, damage, and numbers that no
// grant can have left.
func decodeFormat(format byte, b []byte) ([]int64, bool) {
	if len(b) == 0 || b[0] != format {
		return nil, false
	}
	b = b[1:]
	var fields []int64
	for len(b) > 0 {
		v, n := binary.Uvarint(b)
		if n <= 0 || v > 2*quota.MaxUnits {
			return nil, false
		}
		fields, b = append(fields, int64(v)), b[n:]
	}
	return fields, true
}

// decodeLedger decodes a ledger. It refuses a ledger that no grant can have left.
func decodeLedger(b []byte) (lease.Ledger, bool) {
	fields, ok := decodeFormat(ledgerFormat, b)
	var rest [3]int64 // since, over, gone
	if !ok {
		if fields, ok = decodeFormat(longFormat, b); ok && len(fields) >= len(rest) {
			n := len(fields) - len(rest)
			copy(rest[:], fields[n:])
			fields = fields[:n]
		}
	}
	if !ok || !hasFields(fields, 6, lease.MaxPairs) {
		return lease.Ledger{}, false
	}
	l := lease.Ledger{
		Since: quota.Instant(rest[0]), Over: rest[1], Gone: quota.Instant(rest[2]),
		Version: uint64(fields[0]), Last: quota.Instant(fields[1]), Debt: fields[2],
		Params: quota.Params{Num: fields[3], Den: fields[4], Burst: fields[5]},
	}
	if !l.Params.Sound() {
		return lease.Ledger{}, false
	}
	for i := 6; i < len(fields); i += 2 {
		l.Pairs = append(l.Pairs, lease.Pair{End: quota.Instant(fields[i]), Tokens: fields[i+1]})
	}
	return l, true
}

// decodeWindows decodes windows. It refuses windows that no grant can have left.
func decodeWindows(b []byte) (lease.WindowLedger, bool) {
	const before = 9 // numbers before the marks
	fields, ok := decodeFormat(ledgerFormat, b)
	var h quota.History
	if !ok {
		if fields, ok = decodeFormat(longFormat, b); ok && len(fields) > 2 {
			n := len(fields) - 3
			h.Since, h.Released, h.Kept = quota.Instant(fields[n]), quota.Instant(fields[n+1]), fields[n+2]
			fields = fields[:n]
		}
	}
	if !ok || !hasFields(fields, before, quota.MaxMarks) {
		return lease.WindowLedger{}, false
	}
	w := quota.Windows{
		Algorithm: quota.Algorithm(fields[2]), Quota: fields[3],
		Length: quota.Span(fields[4]), Grain: quota.Span(fields[5]), Offset: quota.Span(fields[6]),
	}
	if fields[2] >= int64(quota.AlgorithmCount) || !w.Sound() {
		return lease.WindowLedger{}, false
	}
	h.Last, h.Reach, h.Until = quota.Instant(fields[1]), quota.Span(fields[7]), quota.Instant(fields[8])
	l := lease.WindowLedger{Windows: w, Version: uint64(fields[0]), History: h}
	var start quota.Instant
	for i := before; i < len(fields); i += 2 {
		if fields[i] == 0 {
			return lease.WindowLedger{}, false
		}
		start += quota.Instant(fields[i])
		l.History.Marks = append(l.History.Marks, quota.Mark{Start: start, Count: fields[i+1]})
	}
	return l, true
}

func putInstant(t quota.Instant) []byte { return binary.BigEndian.AppendUint64(nil, uint64(t)) }

// readInstant decodes an instant of putInstant; anything else is 0.
func readInstant(b []byte) quota.Instant {
	if len(b) != 8 {
		return 0
	}
	return quota.Instant(binary.BigEndian.Uint64(b) & (1<<62 - 1))
}
