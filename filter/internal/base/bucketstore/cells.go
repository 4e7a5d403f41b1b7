package bucketstore

import (
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/quota"
)

// A value of either table begins with its magic and the cells. A cell has the instant until which
// an evicted key may owe tokens.
const (
	cellsPerSlot = 16
	headerSize   = 8
	cellsSize    = cellsPerSlot * 8
	recordsAt    = headerSize + cellsSize
)

// cellOf returns the instant from which no evicted key of the key's cell owes tokens any more.
func cellOf(slot []byte, key *keyhash.Key) quota.Instant {
	return quota.Instant((&coder{b: slot, at: cellOffset(key)}).i64())
}

// rememberDebt notes in the key's cell that an evicted key owes tokens until idle.
func rememberDebt(slot []byte, key *keyhash.Key, idle quota.Instant) {
	c := coder{b: slot, at: cellOffset(key)}
	c.putI64(int64(max(idle, cellOf(slot, key))))
}

func cellOffset(key *keyhash.Key) int { return headerSize + int(key[8]%cellsPerSlot)*8 }

func sameKey(record []byte, key *keyhash.Key) bool { return keyhash.Key(record[:keyhash.Size]) == *key }
