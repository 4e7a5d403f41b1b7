package adaptive

import (
	"encoding/binary"
	"math"

	"github.com/weir-proxy/weir/shared/quota"
)

// The encoding of an Upstream always has Size bytes: the version and other counts of 4 bytes, then
// numbers of 8 bytes, with the lowest byte first.
const (
	version  = 2
	counts   = 8 + MaxClasses + Buckets
	numbers  = 18
	Size     = 4*counts + 8*numbers
	greatest = 1 << 50
)

// Append appends the encoding to dst.
//
//go:noinline
func (u *Upstream) Append(dst []byte) []byte {
	at := len(dst)
	dst = append(dst, make([]byte, Size)...)
	c := codec{rest: dst[at:], writes: true, good: true}
	c.codeUpstream(u)
	return dst
}

// Decode decodes bytes that Append has written. It reports false for bytes of another version, and
// for bytes that Append cannot have written.
//
//go:noinline
func (u *Upstream) Decode(b []byte) bool {
	c := codec{rest: b, good: len(b) == Size && binary.LittleEndian.Uint32(b) == version}
	if c.good {
		c.codeUpstream(u)
	}
	return c.good
}

// codec walks through the encoding, and writes or reads each number.
type codec struct {
	rest         []byte
	writes, good bool
}

func (c *codec) codeUpstream(u *Upstream) {
	l, w := &u.Limit, &u.Window
	// The version, and the small fields in two words.
	number := uint32(version)
	c.codeCount(&number)
	flags := uint32(l.called) | uint32(l.trial)<<8 | uint32(l.run)<<16 | uint32(u.Percentile)<<24
	c.codeCount(&flags)
	l.called, l.trial, l.run, u.Percentile = call(flags), trial(flags>>8), uint8(flags>>16), uint8(flags>>24)
	settled := uint32(0)
	if l.settled {
		settled = 1
	}
	c.codeCount(&settled)
	l.settled = settled == 1
	c.good = c.good && l.called <= down && l.trial <= lifted && settled <= 1
	// The counts, with the histogram.
	c.codeCount(&u.Windows)
	c.codeCount(&w.Refused)
	c.codeCount(&u.Load.Shed)
	c.codeCount(&u.Load.Refused)
	c.codeCount(&u.Reports.Count)
	for i := range u.Load.Arrived {
		c.codeCount(&u.Load.Arrived[i])
	}
	total := uint64(0)
	for i := range w.Latency.Counts {
		c.codeCount(&w.Latency.Counts[i])
		total += uint64(w.Latency.Counts[i])
	}
	w.Latency.Total = uint32(total)
	c.good = c.good && total <= math.MaxUint32
	// The figures of the limit, and the window that its trial compares with.
	t := &l.tried
	c.codeFraction(&l.Value)
	c.codeFraction(&l.Base)
	c.codeFraction(&l.limit)
	c.codeFraction(&l.former)
	c.codeFraction(&l.back)
	c.codeFraction(&l.pace)
	c.codeFraction(&l.before)
	c.codeFraction(&u.Shed.Share)
	c.codeFraction(&t.rate)
	c.codeFraction(&t.held)
	c.codeFraction(&t.count)
	c.codeFraction(&t.latency)
	c.codeFraction(&t.low)
	c.codeFraction(&t.high)
	// The times and the sums.
	u.Began, u.LoadBegan = quota.Instant(c.codeNumber(int64(u.Began))), quota.Instant(c.codeNumber(int64(u.LoadBegan)))
	w.Held, u.Reports.Sum = c.codeNumber(w.Held), uint64(c.codeNumber(int64(u.Reports.Sum)))
}

//go:noinline
func (c *codec) codeCount(n *uint32) {
	if c.writes {
		binary.LittleEndian.PutUint32(c.rest, *n)
	} else {
		*n = binary.LittleEndian.Uint32(c.rest)
	}
	c.rest = c.rest[4:]
}

// codeNumber writes a number and returns it, or returns the number that it reads.
//
//go:noinline
func (c *codec) codeNumber(n int64) int64 {
	if c.writes {
		binary.LittleEndian.PutUint64(c.rest, uint64(n))
	} else {
		n = int64(binary.LittleEndian.Uint64(c.rest))
	}
	c.rest = c.rest[8:]
	c.good = c.good && n >= 0
	return n
}

// codeFraction encodes a number with a fraction. A number of greatest or more is not valid.
//
//go:noinline
func (c *codec) codeFraction(f *float64) {
	*f = math.Float64frombits(uint64(c.codeNumber(int64(math.Float64bits(*f)))))
	c.good = c.good && *f < greatest
}
