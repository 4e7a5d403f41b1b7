package bucketstore

import (
	"math"
	"math/bits"

	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/quota"
)

// A cell of a slot of histories has two parts. The lower bits are the instant from which no evicted
// key of the cell owes tokens any more. The upper bits are the most tokens that a key of the cell
// owed, in the code of codeOf.
const (
	instantBits  = 52
	lastInstant  = quota.Instant(1)<<instantBits - 1
	mantissaBits = 6
	codes        = 1 << (63 - instantBits)
	mostKept     = 1 << 36
)

// windowCell decodes the cell of a key. Before until each evicted key of the cell owes at most owes
// tokens; from until on it owes none.
func windowCell(slot []byte, key *keyhash.Key) (until quota.Instant, owes int64) {
	v := cellOf(slot, key)
	return v & lastInstant, tokensOf(int64(v) >> instantBits)
}

// rememberWindow notes in the key's cell the tokens that an evicted key owes until idle.
func rememberWindow(slot []byte, key *keyhash.Key, idle quota.Instant, owes int64, now quota.Instant) {
	until, most := windowCell(slot, key)
	if until <= now {
		most = 0
	}
	until, most = max(min(idle, lastInstant), until), max(owes, most)
	c := coder{b: slot, at: cellOffset(key)}
	c.putI64(codeOf(most)<<instantBits | int64(until))
}

// codeOf writes a number of tokens in eleven bits, and never reads smaller. Numbers below 128 are
// exact. Larger numbers are their highest seven bits, rounded up, and the shift. 0 means an unknown
// number.
func codeOf(tokens int64) int64 {
	if tokens > mostKept {
		return 0
	}
	shift := max(bits.Len64(uint64(tokens))-mantissaBits-1, 0)
	mantissa := (tokens + 1<<shift - 1) >> shift
	return int64(shift)<<mantissaBits + mantissa
}

// tokensOf returns the number of tokens of a code.
func tokensOf(code int64) int64 {
	if code <= 0 || code >= codes {
		return math.MaxInt64
	}
	shift := max(code>>mantissaBits-1, 0)
	return (code - shift<<mantissaBits) << shift
}
