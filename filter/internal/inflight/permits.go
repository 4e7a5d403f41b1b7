package inflight

import (
	"encoding/binary"

	"github.com/weir-proxy/weir/shared/inflight"
	"github.com/weir-proxy/weir/shared/quota"
)

const permitNumbers = 11

func encodePermits(b []byte, p *inflight.Permits) {
	used := int64(0)
	if p.Used {
		used = 1
	}
	for i, n := range [permitNumbers]int64{
		p.Count, int64(p.Until), int64(p.Seq), int64(p.Sent), p.Need, p.Hold, p.Free, p.Recorded, int64(p.Pause),
		int64(p.Again), used,
	} {
		binary.LittleEndian.PutUint64(b[8*i:], uint64(n))
	}
}

func decodePermits(b []byte) inflight.Permits {
	var n [permitNumbers]int64
	for i := range n {
		n[i] = int64(binary.LittleEndian.Uint64(b[8*i:]))
	}
	return inflight.Permits{
		Count: n[0], Until: quota.Instant(n[1]), Seq: uint64(n[2]), Sent: quota.Instant(n[3]),
		Need: n[4], Hold: n[5], Free: n[6], Recorded: n[7], Pause: quota.Span(n[8]), Again: quota.Instant(n[9]),
		Used: n[10] != 0,
	}
}
