package envoytest

// The helpers here move values between host and guest memory. Addresses come from the guest and may
// point anywhere.

// bytes returns a view of guest memory; it is valid until the guest is entered again.
func (v *vm) bytes(ptr, size uint64) ([]byte, bool) { return v.mem.Read(uint32(ptr), uint32(size)) }

// put32 writes a word at ptr.
func (v *vm) put32(ptr uint64, value uint32) status {
	if !v.mem.WriteUint32Le(uint32(ptr), value) {
		return statusInvalidMemoryAccess
	}
	return statusOK
}

// put64 writes a double word at ptr.
func (v *vm) put64(ptr uint64, value uint64) status {
	if !v.mem.WriteUint64Le(uint32(ptr), value) {
		return statusInvalidMemoryAccess
	}
	return statusOK
}

// give copies value into memory that the guest allocates and writes its address and size at ptrPtr
// and sizePtr. An empty value gives a null address and allocates nothing.
func (v *vm) give(value []byte, ptrPtr, sizePtr uint64) status {
	var ptr uint32
	if len(value) > 0 {
		p, view, ok := v.alloc(uint32(len(value)))
		if !ok {
			return statusInvalidMemoryAccess
		}
		copy(view, value)
		ptr = p
	}
	if st := v.put32(ptrPtr, ptr); st != statusOK {
		return st
	}
	return v.put32(sizePtr, uint32(len(value)))
}

// giveString does the same for a string.
func (v *vm) giveString(value string, ptrPtr, sizePtr uint64) status {
	v.scratch = append(v.scratch[:0], value...)
	return v.give(v.scratch, ptrPtr, sizePtr)
}
