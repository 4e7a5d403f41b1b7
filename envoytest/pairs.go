package envoytest

import "encoding/binary"

// The ABI's form of a header block: the number of pairs, the two sizes of each, then names and
// values, each followed by a zero byte. All numbers are 32-bit little-endian.

// Bounds of a block of pairs from a guest. A block beyond them is decoded as empty.
const (
	maxPairs      = 1024
	maxPairsBytes = 1 << 20
)

func pairsSize(pairs [][2]string) int {
	n := 4
	for _, p := range pairs {
		n += 8 + len(p[0]) + 1 + len(p[1]) + 1
	}
	return n
}

// encodePairs writes pairs into b, which has pairsSize bytes.
func encodePairs(b []byte, pairs [][2]string) {
	binary.LittleEndian.PutUint32(b, uint32(len(pairs)))
	b = b[4:]
	for _, p := range pairs {
		binary.LittleEndian.PutUint32(b, uint32(len(p[0])))
		binary.LittleEndian.PutUint32(b[4:], uint32(len(p[1])))
		b = b[8:]
	}
	for _, p := range pairs {
		for _, s := range p {
			n := copy(b, s)
			b[n] = 0
			b = b[n+1:]
		}
	}
}

// decodePairs copies the pairs out of b. Whatever is malformed or too large decodes as no pairs at
// all.
func decodePairs(b []byte) [][2]string {
	if len(b) < 4 || len(b) > maxPairsBytes {
		return nil
	}
	count := binary.LittleEndian.Uint32(b)
	if count > maxPairs || len(b)-4 < int(count)*8 {
		return nil
	}
	sizes, rest := b[4:4+count*8], b[4+count*8:]
	pairs := make([][2]string, count)
	for i := range pairs {
		for j := range 2 {
			size := int64(binary.LittleEndian.Uint32(sizes))
			sizes = sizes[4:]
			if size+1 > int64(len(rest)) || rest[size] != 0 {
				return nil
			}
			pairs[i][j] = string(rest[:size])
			rest = rest[size+1:]
		}
	}
	if len(rest) != 0 {
		return nil
	}
	return pairs
}
