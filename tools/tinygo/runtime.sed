# Changes TinyGo's runtime so that a virtual machine needs half of the memory.

# The seed comes from the host itself. The C library's arc4random asks the host too, and brings
# printf and a cipher with it: with 10 000 policies the memory doubles to 32 MB, as
# TestMemoryOfInlineSets shows, and the module imports fd_close and fd_seek.
s|^\tn .= uint64(libc_arc4random())$|\trandom_get(unsafe.Pointer(\&n), 8)|
/^\tn .= uint64(libc_arc4random()) << 32$/d
s|^//export arc4random$|//go:wasmimport wasi_snapshot_preview1 random_get|
s|^func libc_arc4random() uint32$|func random_get(buf unsafe.Pointer, size uint32) uint32|
