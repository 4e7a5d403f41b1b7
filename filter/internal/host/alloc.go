//go:build tinygo

package host

import (
	"runtime"
	"unsafe"
)

// Bytes that Envoy returns are placed by the export named malloc, which it prefers over the SDK's proxy_on_memory_allocate.
// This one serves small ones from a static arena that is reset at each callback, so that a request allocates nothing, and
// large ones (snapshots) from one buffer that only ever grows: TinyGo's collector would keep each dead one for a long while.
// Both are overwritten by what comes next: whoever keeps bytes copies them.
const (
	arenaSize = 64 << 10
	largest   = 16 << 20
)

var (
	arena     [arenaSize]byte
	arenaUsed uint32
	large     []byte
)

//export malloc
func hostAlloc(size uint32) unsafe.Pointer {
	if size <= arenaSize-arenaUsed {
		p := unsafe.Pointer(&arena[arenaUsed])
		arenaUsed = min((arenaUsed+size+15)&^15, arenaSize-1)
		return p
	}
	if size > largest {
		return nil
	}
	if uint32(cap(large)) < size {
		large = nil
		large = make([]byte, 1<<bitsFor(size))
	}
	return unsafe.Pointer(&large[0])
}

// Begin starts a callback: bytes returned during the last one are given up.
func Begin() { arenaUsed = 0 }

// Release gives back the buffer of large ones, and collects: what it held, a plugin configuration, is larger than what follows, and has
// been read. TinyGo doubles the memory when it collects while a third of it is not free, and it never shrinks, so it pays to collect
// when little is in use.
func Release() {
	large = nil
	runtime.GC()
}

func bitsFor(n uint32) int {
	bits := 0
	for 1<<bits < n {
		bits++
	}
	return bits
}

// bytesAt is the view of what Envoy placed.
func bytesAt(data uintptr, size uint32) []byte {
	if data == 0 || size == 0 {
		return nil
	}
	return unsafe.Slice((*byte)(unsafe.Pointer(data)), size)
}
