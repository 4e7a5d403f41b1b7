package wire

import (
	"math"

	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/quota"
)

// Bounds of what one consumer has beside its tier.
const (
	// MaxSpecial is the most bytes that AppendSpecial may have made for a node to take them.
	MaxSpecial = 2048
	// MaxOverrides is how many policies' limits may be overridden.
	MaxOverrides = 16
)

// ForGood is the end of what never ends by itself, in Unix milliseconds like all ends here.
const ForGood = math.MaxInt64

// Special is what a consumer has beside its tier.
type Special struct {
	// Banned consumers are refused, and those with a Bypass never limited, until an instant; 0: they are not.
	Banned, Bypass int64
	Overrides      []Override
}

// Override are the limits that a consumer has in place of a policy's own, until an instant; no limits at all: the policy does not
// apply to it.
type Override struct {
	Policy string
	Until  int64
	Limits []Figures
}

// Figures are a limit without how it is counted, which is the policy's to say. A Burst of 0 is the quota.
type Figures struct {
	Quota  int64
	Window quota.Span
	Burst  int64
}

// AppendSpecial appends s to dst; nothing if there is nothing in it.
func AppendSpecial(dst []byte, s Special) []byte {
	if s.Banned == 0 && s.Bypass == 0 && len(s.Overrides) == 0 {
		return dst
	}
	dst = putUvarint(putUvarint(dst, s.Banned), s.Bypass)
	dst = append(dst, byte(len(s.Overrides)))
	for _, o := range s.Overrides {
		dst = putUvarint(putText(dst, o.Policy), o.Until)
		dst = append(dst, byte(len(o.Limits)))
		for _, f := range o.Limits {
			dst = putUvarint(putUvarint(putUvarint(dst, f.Quota), int64(f.Window)), f.Burst)
		}
	}
	return dst
}

// SpecialReader reads what AppendSpecial has made. The zero value is of a consumer that has nothing.
type SpecialReader struct {
	Banned, Bypass int64

	c    cursor
	left int64
}

// OpenSpecial begins to read; of bytes that are none there is nothing to read.
func OpenSpecial(b []byte) (r SpecialReader) {
	if len(b) == 0 {
		return r
	}
	r.c.buf = b
	r.Banned, r.Bypass = r.c.uvarint(), r.c.uvarint()
	r.left = r.c.within(0, MaxOverrides)
	return r
}

// Limits are those of one override, and which policy's they replace until when.
type Limits struct {
	// Policy aliases the bytes that are read.
	Policy []byte
	Until  int64
	Count  int
	Each   [policy.MaxLimits]Figures
}

// Next reads the next override; false after the last.
func (r *SpecialReader) Next(l *Limits) bool {
	if r.left == 0 || r.c.err != nil {
		return false
	}
	r.left--
	l.Policy, l.Until = r.c.text(63), r.c.uvarint()
	l.Count = int(r.c.within(0, policy.MaxLimits))
	for i := range l.Each[:l.Count] {
		l.Each[i] = Figures{Quota: r.c.uvarint(), Window: quota.Span(r.c.uvarint()), Burst: r.c.uvarint()}
	}
	return r.c.err == nil
}

// isSpecial says whether bytes can be read to their end.
func isSpecial(b []byte) bool {
	r := OpenSpecial(b)
	var l Limits
	for r.Next(&l) {
	}
	return r.c.end() == nil
}
