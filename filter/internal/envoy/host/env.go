//go:build tinygo

package host

//go:wasmimport wasi_snapshot_preview1 environ_sizes_get
func environSizesGet(count, size *uint32) uint32

//go:wasmimport wasi_snapshot_preview1 environ_get
func environGet(list *uintptr, buf *byte) uint32

// Env returns a variable of the VM's environment, which the operator passes on by host_env_keys. It
// calls WASI directly: the C library's getenv would bring a second malloc into the module, beside
// the malloc that Envoy must call.
func Env(name string) (string, bool) {
	var count, size uint32
	if environSizesGet(&count, &size) != statusOK || count == 0 || size == 0 {
		return "", false
	}
	list, buf := make([]uintptr, count), make([]byte, size)
	if environGet(&list[0], &buf[0]) != statusOK {
		return "", false
	}
	for len(buf) > 0 {
		end := 0
		for end < len(buf) && buf[end] != 0 {
			end++
		}
		if entry := string(buf[:end]); len(entry) > len(name) && entry[len(name)] == '=' && entry[:len(name)] == name {
			return entry[len(name)+1:], true
		}
		buf = buf[min(end+1, len(buf)):]
	}
	return "", false
}
