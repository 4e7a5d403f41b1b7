package wire

import (
	"math"

	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/quota"
)

// Bounds of the exceptions of one consumer.
const (
	// MaxUnrooted is the longest encoding of exceptions whose limits have no roots yet.
	// MaxExceptions is the longest encoding that a node accepts.
	MaxUnrooted   = 2048
	MaxExceptions = MaxUnrooted + MaxOverrides*policy.MaxLimits*rootSize
	// MaxOverrides is the largest number of policies whose limits may be overridden.
	MaxOverrides = 16
	// rootSize is the largest number of bytes that a root adds.
	rootSize = 6
)

// ForGood is the end of an exception that never ends by itself, in Unix milliseconds like all ends
// here.
const ForGood = math.MaxInt64

// Exceptions are a consumer's exceptions beside its tier.
type Exceptions struct {
	// Banned is until when the consumer is refused, Bypass until when it is not limited; 0 for
	// neither.
	Banned, Bypass int64
	Overrides      []Override
}

// Override is a consumer's own limits in place of a policy's, until an instant. Without limits the
// policy does not apply to the consumer.
type Override struct {
	Policy string
	Until  int64
	Limits []Figures
}

// Figures are a limit without its algorithm, which the policy defines. A Burst of 0 means the
// quota. Root is its policy.Limit.Root.
type Figures struct {
	Quota  int64
	Window quota.Span
	Burst  int64
	Root   quota.Span
}

// AppendExceptions appends s to dst, and no bytes for a zero s.
func AppendExceptions(dst []byte, s Exceptions) []byte {
	if s.Banned == 0 && s.Bypass == 0 && len(s.Overrides) == 0 {
		return dst
	}
	dst = putUvarint(putUvarint(dst, s.Banned), s.Bypass)
	dst = append(dst, byte(len(s.Overrides)))
	for _, o := range s.Overrides {
		dst = putUvarint(putText(dst, o.Policy), o.Until)
		dst = append(dst, byte(len(o.Limits)))
		for _, f := range o.Limits {
			for _, n := range [...]int64{f.Quota, int64(f.Window), f.Burst, int64(f.Root)} {
				dst = putUvarint(dst, n)
			}
		}
	}
	return dst
}

// Ends reads the ends of a ban and a bypass from the form of AppendExceptions.
func Ends(exceptions []byte) (banned, bypass int64) {
	if len(exceptions) == 0 {
		return 0, 0
	}
	c := cursor{buf: exceptions}
	return c.readUvarint(), c.readUvarint()
}

// Limits are the limits of one override, and until when they replace the policy's.
type Limits struct {
	Until int64
	Count int
	Each  [policy.MaxLimits]Figures
}

// FindOverride reads the override of a policy's limits from the form of AppendExceptions. If there
// is none it reports false, and l has no limits.
func FindOverride(exceptions, name []byte, l *Limits) bool {
	l.Count = 0
	if len(exceptions) == 0 {
		return false
	}
	c := cursor{buf: exceptions}
	c.readUvarint()
	c.readUvarint()
	found := false
	for left := c.u8(); left > 0 && c.err == nil; left-- {
		same := string(c.readText(63)) == string(name) && !found
		until, n := c.readUvarint(), int(c.readWithin(0, policy.MaxLimits))
		if same {
			found, l.Until, l.Count = true, until, n
		}
		for i := range n {
			f := Figures{Quota: c.readUvarint(), Window: quota.Span(c.readUvarint()), Burst: c.readUvarint(),
				Root: quota.Span(c.readUvarint())}
			if same {
				l.Each[i] = f
			}
		}
	}
	if !found || c.err != nil {
		l.Count = 0
		return false
	}
	return true
}
