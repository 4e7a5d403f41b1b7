//go:build tinygo

package host

// The host calls of the request path are declared here a second time, beside the SDK's, so that
// they can use static buffers: the SDK allocates on most calls and panics on ordinary refusals of
// Envoy. They have the signatures and meanings of the proxy-wasm ABI 0.2.0; a status of 0 is OK.

//go:wasmimport env proxy_get_header_map_pairs
func proxyGetHeaderMapPairs(mapType uint32, data *uintptr, size *uint32) uint32

//go:wasmimport env proxy_get_header_map_value
func proxyGetHeaderMapValue(mapType uint32, key *byte, keySize uint32, data *uintptr, size *uint32) uint32

//go:wasmimport env proxy_replace_header_map_value
func proxyReplaceHeaderMapValue(mapType uint32, key *byte, keySize uint32, value *byte, valueSize uint32) uint32

//go:wasmimport env proxy_remove_header_map_value
func proxyRemoveHeaderMapValue(mapType uint32, key *byte, keySize uint32) uint32

//go:wasmimport env proxy_get_property
func proxyGetProperty(path *byte, pathSize uint32, data *uintptr, size *uint32) uint32

//go:wasmimport env proxy_set_property
func proxySetProperty(path *byte, pathSize uint32, value *byte, valueSize uint32) uint32

//go:wasmimport env proxy_get_shared_data
func proxyGetSharedData(key *byte, keySize uint32, data *uintptr, size *uint32, cas *uint32) uint32

//go:wasmimport env proxy_set_shared_data
func proxySetSharedData(key *byte, keySize uint32, value *byte, valueSize uint32, cas uint32) uint32

//go:wasmimport env proxy_send_local_response
func proxySendLocalResponse(status uint32, details *byte, detailsSize uint32, body *byte, bodySize uint32,
	headers *byte, headersSize uint32, grpcStatus int32) uint32

//go:wasmimport env proxy_define_metric
func proxyDefineMetric(kind uint32, name *byte, nameSize uint32, id *uint32) uint32

//go:wasmimport env proxy_increment_metric
func proxyIncrementMetric(id uint32, offset int64) uint32

//go:wasmimport env proxy_record_metric
func proxyRecordMetric(id uint32, value uint64) uint32

//go:wasmimport env proxy_set_tick_period_milliseconds
func proxySetTickPeriod(milliseconds uint32) uint32

//go:wasmimport env proxy_continue_stream
func proxyContinueStream(kind uint32) uint32

//go:wasmimport env proxy_set_effective_context
func proxySetEffectiveContext(id uint32) uint32

//go:wasmimport env proxy_log
func proxyLog(level uint32, message *byte, size uint32) uint32

// clockTimeGet id 1 is the monotonic clock, the same base for all VMs of a machine; the SDK has
// only the wall clock.
//
//go:wasmimport wasi_snapshot_preview1 clock_time_get
func clockTimeGet(id uint32, precision uint64, time *uint64) uint32

//go:wasmimport wasi_snapshot_preview1 random_get
func randomGet(buf *byte, size uint32) uint32
