package bucketstore

import (
	"math"
	"math/bits"

	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/quota"
)

// A cell of a slot of histories holds, in its lower bits, the instant from which none of its
// evicted keys owes any more, and above it the most tokens that one of them owed, as codeOf writes
// them.
const (
	instantBits  = 52
	lastInstant  = quota.Instant(1)<<instantBits - 1
	mantissaBits = 6
	codes        = 1 << (63 - instantBits)
	mostKept     = 1 << 36
)

// windowCell is the instant from which no evicted key of the same cell owes any more, and the most
// that each owes before.
func windowCell(slot []byte, key *keyhash.Key) (until quota.Instant, owes int64) {
	v := cell(slot, key)
	return v & lastInstant, tokensOf(int64(v) >> instantBits)
}

// rememberWindow notes in the key's cell what an evicted key owes until idle.
func rememberWindow(slot []byte, key *keyhash.Key, idle quota.Instant, owes int64, now quota.Instant) {
	until, most := windowCell(slot, key)
	if until <= now {
		most = 0
	}
	until, most = max(min(idle, lastInstant), until), max(owes, most)
	c := coder{b: slot, at: cellOffset(key)}
	c.putI64(codeOf(most)<<instantBits | int64(until))
}

// codeOf writes a number of tokens in eleven bits, so that it never reads smaller: the numbers
// below 128 as they are, larger ones by the six bits below the highest, rounded up, and by how far
// these are shifted. 0 stands for an unknown number.
func codeOf(tokens int64) int64 {
	if tokens > mostKept {
		return 0
	}
	shift := max(bits.Len64(uint64(tokens))-mantissaBits-1, 0)
	mantissa := (tokens + 1<<shift - 1) >> shift
	return int64(shift)<<mantissaBits + mantissa
}

func tokensOf(code int64) int64 {
	if code <= 0 || code >= codes {
		return math.MaxInt64
	}
	shift := max(code>>mantissaBits-1, 0)
	return (code - shift<<mantissaBits) << shift
}
