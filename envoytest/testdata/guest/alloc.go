package main

// kept is what the host's bytes are in until the next host call: the collector must not take them while the guest reads.
var kept []byte

// Counts of the two allocators, and what the next allocation is to call.
var (
	mallocs, allocates uint32
	inAlloc            string
)

//export malloc
func malloc(size uint32) *byte {
	mallocs++
	call := inAlloc
	inAlloc = ""
	switch call {
	case "log":
		logLine("alloc: log")
	case "clock":
		var t uint64
		clockTimeGet(1, 0, &t)
	case "time":
		var t uint64
		proxyGetCurrentTime(&t)
	case "random":
		var b [8]byte
		randomGet(&b[0], 8)
	case "null":
		return nil
	}
	kept = make([]byte, size)
	return &kept[0]
}

//export proxy_on_memory_allocate
func allocate(size uint32) *byte {
	allocates++
	kept = make([]byte, size)
	return &kept[0]
}
