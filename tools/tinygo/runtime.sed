# Changes TinyGo's runtime so that the filter is a tenth smaller.

# Two rare ways stay out of their callers, into which LLVM would copy them: how append grows a slice
# (what it does where there is room stays in line), and how strings are put together.
s|^\tnewCap = 1 << bits\.Len(uint(newCap))$|\treturn sliceRegrow(oldBuf, oldLen, newCap, elemSize, layout)\
}\
\
//go:noinline\
func sliceRegrow(oldBuf unsafe.Pointer, oldLen, newCap, elemSize uintptr, layout unsafe.Pointer) (unsafe.Pointer, uintptr, uintptr) {\
&|
s|^func stringConcat(|//go:noinline\
&|

# A panic prints strings, errors and whole numbers. What else it could print would keep the names of
# all types and the printing of fractions in the filter; such values are printed as addresses.
/^\tcase \(float32\|float64\|complex64\|complex128\|stringer\):$/{
N
d
}

# The seed comes from the host itself. The C library's arc4random asks the host too, and brings a
# cipher and printf with it.
s|^\tn .= uint64(libc_arc4random())$|\trandom_get(unsafe.Pointer(\&n), 8)|
/^\tn .= uint64(libc_arc4random()) << 32$/d
s|^//export arc4random$|//go:wasmimport wasi_snapshot_preview1 random_get|
s|^func libc_arc4random() uint32$|func random_get(buf unsafe.Pointer, size uint32) uint32|
