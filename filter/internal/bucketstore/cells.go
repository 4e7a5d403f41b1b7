package bucketstore

import (
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/quota"
)

// A value of either table begins with its magic and the cells: the instants until which some key evicted from the slot may owe.
const (
	cellsPerSlot = 16
	headerSize   = 8
	cellsSize    = cellsPerSlot * 8
	recordsAt    = headerSize + cellsSize
)

// cell is the instant from which no key of the same cell that was evicted from the slot owes any more.
func cell(slot []byte, key *keyhash.Key) quota.Instant {
	return quota.Instant((&coder{b: slot, at: cellOffset(key)}).i64())
}

// remember leaves in its cell that an evicted key owes until idle.
func remember(slot []byte, key *keyhash.Key, idle quota.Instant) {
	c := coder{b: slot, at: cellOffset(key)}
	c.putI64(int64(max(idle, cell(slot, key))))
}

func cellOffset(key *keyhash.Key) int { return headerSize + int(key[8]%cellsPerSlot)*8 }

func sameKey(record []byte, key *keyhash.Key) bool { return keyhash.Key(record[:keyhash.Size]) == *key }
