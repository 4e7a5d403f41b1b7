//go:build tinygo

package host

import (
	"runtime"
	"unsafe"
)

// Envoy places the bytes that it returns by the export named malloc, which it prefers over the
// SDK's proxy_on_memory_allocate. This malloc serves small sizes from a static arena that each
// callback resets, so that a request allocates nothing. It serves large sizes (snapshots) from one
// buffer that only grows: TinyGo's collector would keep each dead buffer for a long time. Later
// bytes overwrite both, so code that keeps bytes must copy them.
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

// Begin starts a callback: the bytes of the last callback become invalid.
func Begin() { arenaUsed = 0 }

// Release frees the buffer of large bytes and collects: it held a plugin configuration, which has
// been read and is larger than later messages. TinyGo doubles the memory if a collection that an
// allocation caused finds less than a third free, and the memory never shrinks. An explicit
// collection never grows it, so it pays to collect when little is in use.
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

// bytesAt returns a view of the bytes that Envoy placed.
func bytesAt(data uintptr, size uint32) []byte {
	if data == 0 || size == 0 {
		return nil
	}
	return unsafe.Slice((*byte)(unsafe.Pointer(data)), size)
}
