package adaptive

import (
	"encoding/binary"
	"math"

	"github.com/weir-proxy/weir/shared/quota"
)

// An Upstream is encoded in Size bytes, whatever it holds: the version and other counts of 4 bytes,
// then numbers of 8, with the lowest byte first.
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
	c.upstream(u)
	return dst
}

// Decode reads what Append has written. It reports false for bytes of another version, and for
// those that Append cannot have written.
//
//go:noinline
func (u *Upstream) Decode(b []byte) bool {
	c := codec{rest: b, good: len(b) == Size && binary.LittleEndian.Uint32(b) == version}
	if c.good {
		c.upstream(u)
	}
	return c.good
}

// codec goes through the encoding, and writes each number or reads it.
type codec struct {
	rest         []byte
	writes, good bool
}

func (c *codec) upstream(u *Upstream) {
	l, w := &u.Limit, &u.Window
	number := uint32(version)
	c.count(&number)
	flags := uint32(l.called) | uint32(l.trial)<<8 | uint32(l.run)<<16 | uint32(u.Percentile)<<24
	c.count(&flags)
	l.called, l.trial, l.run, u.Percentile = call(flags), trial(flags>>8), uint8(flags>>16), uint8(flags>>24)
	settled := uint32(0)
	if l.settled {
		settled = 1
	}
	c.count(&settled)
	l.settled = settled == 1
	c.good = c.good && l.called <= down && l.trial <= lifted && settled <= 1
	c.count(&u.Windows)
	c.count(&w.Refused)
	c.count(&u.Load.Shed)
	c.count(&u.Load.Refused)
	c.count(&u.Reports.Count)
	for i := range u.Load.Arrived {
		c.count(&u.Load.Arrived[i])
	}
	total := uint64(0)
	for i := range w.Latency.Counts {
		c.count(&w.Latency.Counts[i])
		total += uint64(w.Latency.Counts[i])
	}
	w.Latency.Total = uint32(total)
	c.good = c.good && total <= math.MaxUint32
	t := &l.tried
	c.fraction(&l.Value)
	c.fraction(&l.Base)
	c.fraction(&l.limit)
	c.fraction(&l.former)
	c.fraction(&l.back)
	c.fraction(&l.pace)
	c.fraction(&l.before)
	c.fraction(&u.Shed.Share)
	c.fraction(&t.rate)
	c.fraction(&t.held)
	c.fraction(&t.count)
	c.fraction(&t.latency)
	c.fraction(&t.low)
	c.fraction(&t.high)
	u.Began, u.LoadBegan = quota.Instant(c.number(int64(u.Began))), quota.Instant(c.number(int64(u.LoadBegan)))
	w.Held, u.Reports.Sum = c.number(w.Held), uint64(c.number(int64(u.Reports.Sum)))
}

//go:noinline
func (c *codec) count(n *uint32) {
	if c.writes {
		binary.LittleEndian.PutUint32(c.rest, *n)
	} else {
		*n = binary.LittleEndian.Uint32(c.rest)
	}
	c.rest = c.rest[4:]
}

// number writes a number and returns it, or returns the one that is read.
//
//go:noinline
func (c *codec) number(n int64) int64 {
	if c.writes {
		binary.LittleEndian.PutUint64(c.rest, uint64(n))
	} else {
		n = int64(binary.LittleEndian.Uint64(c.rest))
	}
	c.rest = c.rest[8:]
	c.good = c.good && n >= 0
	return n
}

// fraction is number for one with a fraction, of which none is as great as greatest.
//
//go:noinline
func (c *codec) fraction(f *float64) {
	*f = math.Float64frombits(uint64(c.number(int64(math.Float64bits(*f)))))
	c.good = c.good && *f < greatest
}
