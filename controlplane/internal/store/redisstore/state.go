package redisstore

import (
	"encoding/binary"

	"github.com/weir-proxy/weir/shared/lease"
	"github.com/weir-proxy/weir/shared/quota"
)

// stateFormat begins every state of a bucket; tokens.lua and windows.lua describe the numbers
// behind it.
const stateFormat = 1

// longFormat begins a state that ends with three more numbers, by which settlements know which
// reservations still count. For a bucket of tokens: Since of the ledger, Over and Gone. For
// windows: Since, Released and Kept of the history.
const longFormat = 2

// The number of fields in a state before its leases, or its marks.
const (
	ledgerFields  = 7
	windowsFields = 10
)

// pack encodes non-negative whole numbers as a MessagePack list, in the form that cmsgpack of Redis
// reads.
func pack(numbers []int64) []byte {
	b := binary.BigEndian.AppendUint16([]byte{0xdc}, uint16(len(numbers)))
	for _, n := range numbers {
		b = binary.BigEndian.AppendUint64(append(b, 0xcf), uint64(n))
	}
	return b
}

// unpack decodes a list that pack or cmsgpack encoded; ok is false for anything else.
func unpack(raw string) (numbers []int64, ok bool) {
	b := []byte(raw)
	var n int
	// The length of the list.
	switch {
	case len(b) >= 1 && b[0]&0xf0 == 0x90:
		n, b = int(b[0]&0x0f), b[1:]
	case len(b) >= 3 && b[0] == 0xdc:
		n, b = int(binary.BigEndian.Uint16(b[1:])), b[3:]
	default:
		return nil, false
	}
	for range n {
		if len(b) == 0 {
			return nil, false
		}
		// Each number: one byte, or a kind and up to eight bytes.
		kind, size := b[0], 0
		switch {
		case kind < 0x80:
			numbers, b = append(numbers, int64(kind)), b[1:]
			continue
		case kind >= 0xcc && kind <= 0xcf:
			size = 1 << (kind - 0xcc)
		case kind >= 0xd0 && kind <= 0xd3: // cmsgpack also writes positive numbers in the signed formats.
			size = 1 << (kind - 0xd0)
		}
		if size == 0 || len(b) < 1+size {
			return nil, false
		}
		var v uint64
		for _, c := range b[1 : 1+size] {
			v = v<<8 | uint64(c)
		}
		if v > 2*quota.MaxUnits {
			return nil, false
		}
		numbers, b = append(numbers, int64(v)), b[1+size:]
	}
	return numbers, len(b) == 0
}

// areFields reports whether a state has the fixed numbers and at most this number of pairs.
func areFields(s []int64, fixed, pairs int) bool {
	return len(s) >= fixed && len(s) <= fixed+2*pairs && (len(s)-fixed)%2 == 0 && s[0] == stateFormat
}

func readLedger(raw string) (lease.Ledger, bool) {
	s, ok := unpack(raw)
	var rest [3]int64 // since, over, gone
	if n := len(s) - len(rest); ok && n >= ledgerFields && s[0] == longFormat {
		copy(rest[:], s[n:])
		s, s[0] = s[:n], stateFormat
	}
	if !ok || !areFields(s, ledgerFields, lease.MaxPairs) {
		return lease.Ledger{}, false
	}
	l := lease.Ledger{
		Since: quota.Instant(rest[0]), Over: rest[1], Gone: quota.Instant(rest[2]),
		Version: uint64(s[1]), Last: quota.Instant(s[2]), Debt: s[3],
		Params: quota.Params{Num: s[4], Den: s[5], Burst: s[6]},
	}
	if !l.Params.Sound() {
		return lease.Ledger{}, false
	}
	for at := ledgerFields; at < len(s); at += 2 {
		l.Pairs = append(l.Pairs, lease.Pair{End: quota.Instant(s[at]), Tokens: s[at+1]})
	}
	return l, true
}

func packLedger(l lease.Ledger) []byte {
	s := []int64{stateFormat, int64(l.Version), int64(l.Last), l.Debt, l.Params.Num, l.Params.Den, l.Params.Burst}
	for _, p := range l.Pairs {
		s = append(s, int64(p.End), p.Tokens)
	}
	if l.Since > 0 || l.Over > 0 {
		s[0] = longFormat
		s = append(s, int64(l.Since), l.Over, int64(l.Gone))
	}
	return pack(s)
}

func readWindows(raw string) (lease.WindowLedger, bool) {
	s, ok := unpack(raw)
	var h quota.History
	if n := len(s); ok && n >= windowsFields+3 && s[0] == longFormat {
		h.Since, h.Released, h.Kept = quota.Instant(s[n-3]), quota.Instant(s[n-2]), s[n-1]
		s, s[0] = s[:n-3], stateFormat
	}
	if !ok || !areFields(s, windowsFields, quota.MaxMarks) {
		return lease.WindowLedger{}, false
	}
	w := quota.Windows{
		Algorithm: quota.Algorithm(s[3]), Quota: s[4],
		Length: quota.Span(s[5]), Grain: quota.Span(s[6]), Offset: quota.Span(s[7]),
	}
	if s[3] < 0 || s[3] >= int64(quota.AlgorithmCount) || !w.Sound() {
		return lease.WindowLedger{}, false
	}
	h.Last, h.Reach, h.Until = quota.Instant(s[2]), quota.Span(s[8]), quota.Instant(s[9])
	l := lease.WindowLedger{Windows: w, Version: uint64(s[1]), History: h}
	var start quota.Instant
	for at := windowsFields; at < len(s); at += 2 {
		if s[at] < 1 {
			return lease.WindowLedger{}, false
		}
		start += quota.Instant(s[at])
		l.History.Marks = append(l.History.Marks, quota.Mark{Start: start, Count: s[at+1]})
	}
	return l, true
}

func packWindows(l lease.WindowLedger) []byte {
	w := l.Windows
	s := []int64{
		stateFormat, int64(l.Version), int64(l.History.Last), int64(w.Algorithm), w.Quota,
		int64(w.Length), int64(w.Grain), int64(w.Offset), int64(l.History.Reach), int64(l.History.Until),
	}
	var before quota.Instant
	for _, m := range l.History.Marks {
		s = append(s, int64(m.Start-before), m.Count)
		before = m.Start
	}
	if h := &l.History; h.Since > 0 || h.Released > 0 {
		s[0] = longFormat
		s = append(s, int64(h.Since), int64(h.Released), h.Kept)
	}
	return pack(s)
}
