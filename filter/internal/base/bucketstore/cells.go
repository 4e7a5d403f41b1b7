package bucketstore

import (
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/quota"
)

// A value of either table begins with its magic and the cells: the instants until which an evicted
// key may owe.
const (
	cellsPerSlot = 16
	headerSize   = 8
	cellsSize    = cellsPerSlot * 8
	recordsAt    = headerSize + cellsSize
)

// cell is the instant from which no evicted key of the same cell owes any more.
func cell(slot []byte, key *keyhash.Key) quota.Instant {
	return quota.Instant((&coder{b: slot, at: cellOffset(key)}).i64())
}

// remember notes in the key's cell that an evicted key owes until idle.
func remember(slot []byte, key *keyhash.Key, idle quota.Instant) {
	c := coder{b: slot, at: cellOffset(key)}
	c.putI64(int64(max(idle, cell(slot, key))))
}

func cellOffset(key *keyhash.Key) int { return headerSize + int(key[8]%cellsPerSlot)*8 }

func sameKey(record []byte, key *keyhash.Key) bool { return keyhash.Key(record[:keyhash.Size]) == *key }
