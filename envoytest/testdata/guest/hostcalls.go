package main

import (
	"strings"
	"unsafe"
)

//go:wasmimport env proxy_log
func proxyLog(level uint32, ptr *byte, size uint32) uint32

//go:wasmimport env proxy_get_property
func proxyGetProperty(ptr *byte, size uint32, outPtr, outSize *uint32) uint32

//go:wasmimport env proxy_set_property
func proxySetProperty(ptr *byte, size uint32, valuePtr *byte, valueSize uint32) uint32

//go:wasmimport env proxy_get_header_map_pairs
func proxyGetHeaderMapPairs(kind uint32, outPtr, outSize *uint32) uint32

//go:wasmimport env proxy_set_header_map_pairs
func proxySetHeaderMapPairs(kind uint32, ptr *byte, size uint32) uint32

//go:wasmimport env proxy_get_header_map_value
func proxyGetHeaderMapValue(kind uint32, ptr *byte, size uint32, outPtr, outSize *uint32) uint32

//go:wasmimport env proxy_add_header_map_value
func proxyAddHeaderMapValue(kind uint32, ptr *byte, size uint32, valuePtr *byte, valueSize uint32) uint32

//go:wasmimport env proxy_replace_header_map_value
func proxyReplaceHeaderMapValue(kind uint32, ptr *byte, size uint32, valuePtr *byte, valueSize uint32) uint32

//go:wasmimport env proxy_remove_header_map_value
func proxyRemoveHeaderMapValue(kind uint32, ptr *byte, size uint32) uint32

//go:wasmimport env proxy_get_buffer_bytes
func proxyGetBufferBytes(kind, start, length uint32, outPtr, outSize *uint32) uint32

//go:wasmimport env proxy_get_shared_data
func proxyGetSharedData(ptr *byte, size uint32, outPtr, outSize, outCas *uint32) uint32

//go:wasmimport env proxy_set_shared_data
func proxySetSharedData(ptr *byte, size uint32, valuePtr *byte, valueSize, cas uint32) uint32

//go:wasmimport env proxy_define_metric
func proxyDefineMetric(kind uint32, ptr *byte, size uint32, outID *uint32) uint32

//go:wasmimport env proxy_increment_metric
func proxyIncrementMetric(id uint32, offset int64) uint32

//go:wasmimport env proxy_record_metric
func proxyRecordMetric(id uint32, value uint64) uint32

//go:wasmimport env proxy_get_metric
func proxyGetMetric(id uint32, out *uint64) uint32

//go:wasmimport env proxy_http_call
func proxyHTTPCall(ptr *byte, size uint32, headersPtr *byte, headersSize uint32, bodyPtr *byte, bodySize uint32,
	trailersPtr *byte, trailersSize, timeout uint32, outID *uint32) uint32

//go:wasmimport env proxy_send_local_response
func proxySendLocalResponse(code uint32, detailsPtr *byte, detailsSize uint32, bodyPtr *byte, bodySize uint32,
	headersPtr *byte, headersSize uint32, grpcStatus int32) uint32

//go:wasmimport env proxy_continue_stream
func proxyContinueStream(kind uint32) uint32

//go:wasmimport env proxy_close_stream
func proxyCloseStream(kind uint32) uint32

//go:wasmimport env proxy_set_effective_context
func proxySetEffectiveContext(id uint32) uint32

//go:wasmimport env proxy_set_tick_period_milliseconds
func proxySetTickPeriod(ms uint32) uint32

//go:wasmimport env proxy_done
func proxyDone() uint32

//go:wasmimport env proxy_get_current_time_nanoseconds
func proxyGetCurrentTime(out *uint64) uint32

//go:wasmimport wasi_snapshot_preview1 clock_time_get
func clockTimeGet(id uint32, precision uint64, out *uint64) uint32

//go:wasmimport wasi_snapshot_preview1 random_get
func randomGet(ptr *byte, size uint32) uint32

//go:wasmimport wasi_snapshot_preview1 environ_sizes_get
func environSizesGet(count, size *uint32) uint32

//go:wasmimport wasi_snapshot_preview1 environ_get
func environGet(pointers *uint32, buffer *byte) uint32

//go:wasmimport wasi_snapshot_preview1 proc_exit
func procExit(code uint32)

// getenv asks the host itself: os.Getenv would link libc's malloc, which clashes with the exported one.
func getenv(name string) string {
	var count, size uint32
	if environSizesGet(&count, &size) != 0 || count == 0 {
		return ""
	}
	pointers, buffer := make([]uint32, count), make([]byte, size)
	environGet(&pointers[0], &buffer[0])
	for _, entry := range strings.Split(string(buffer), "\x00") {
		if value, ok := strings.CutPrefix(entry, name+"="); ok {
			return value
		}
	}
	return ""
}

// data returns the address of a string's bytes; that of an empty one is null.
func data(s string) *byte { return unsafe.StringData(s) }

// text copies what the host left at an address.
func text(ptr, size uint32) string {
	if size == 0 {
		return ""
	}
	return string(unsafe.Slice((*byte)(unsafe.Pointer(uintptr(ptr))), size))
}
