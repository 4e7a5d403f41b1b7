package localstore

import (
	"encoding/binary"

	"github.com/weir-proxy/weir/shared/lease"
	"github.com/weir-proxy/weir/shared/quota"
)

const ledgerFormat = 1

// encodeLedger writes the format and then, as varints, version, last, debt, num, den, burst and each pair.
func encodeLedger(l lease.Ledger) []byte {
	b := append(make([]byte, 0, 64), ledgerFormat)
	b = binary.AppendUvarint(b, l.Version)
	for _, v := range []int64{int64(l.Last), l.Debt, l.Params.Num, l.Params.Den, l.Params.Burst} {
		b = binary.AppendUvarint(b, uint64(v))
	}
	for _, p := range l.Pairs {
		b = binary.AppendUvarint(binary.AppendUvarint(b, uint64(p.End)), uint64(p.Tokens))
	}
	return b
}

// decodeLedger refuses another format, damage, and figures that no grant can have left.
func decodeLedger(b []byte) (lease.Ledger, bool) {
	if len(b) == 0 || b[0] != ledgerFormat {
		return lease.Ledger{}, false
	}
	b = b[1:]
	var fields []int64
	for len(b) > 0 {
		v, n := binary.Uvarint(b)
		if n <= 0 || v > 2*quota.MaxUnits {
			return lease.Ledger{}, false
		}
		fields, b = append(fields, int64(v)), b[n:]
	}
	if len(fields) < 6 || len(fields)%2 != 0 || len(fields) > 6+2*lease.MaxPairs {
		return lease.Ledger{}, false
	}
	l := lease.Ledger{
		Version: uint64(fields[0]), Last: quota.Instant(fields[1]), Debt: fields[2],
		Params: quota.Params{Num: fields[3], Den: fields[4], Burst: fields[5]},
	}
	if p := l.Params; p.Num < 1 || p.Den < 1 || p.Burst < 1 || p.Num > quota.MaxUnits || p.Burst > quota.MaxUnits/p.Den {
		return lease.Ledger{}, false
	}
	for i := 6; i < len(fields); i += 2 {
		l.Pairs = append(l.Pairs, lease.Pair{End: quota.Instant(fields[i]), Tokens: fields[i+1]})
	}
	return l, true
}

func putInstant(t quota.Instant) []byte { return binary.BigEndian.AppendUint64(nil, uint64(t)) }

// instant reads what putInstant wrote; anything else is 0.
func instant(b []byte) quota.Instant {
	if len(b) != 8 {
		return 0
	}
	return quota.Instant(binary.BigEndian.Uint64(b) & (1<<62 - 1))
}
