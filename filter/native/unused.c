// Callbacks that Envoy wants every module to have, and that this one does not use: it makes no calls of
// streams, and is not the last filter.
#include "host.h"

EXPORT const void *envoy_dynamic_module_on_http_filter_per_route_config_new(
	envoy_bytes name, envoy_bytes configuration) {
	(void)name, (void)configuration;
	write_log(envoy_dynamic_module_type_log_level_Error,
		"weir: cannot load a configuration of a route: policies say which routes they limit; remove it");
	return NULL;
}

EXPORT void envoy_dynamic_module_on_http_filter_per_route_config_destroy(const void *config) { (void)config; }

EXPORT void envoy_dynamic_module_on_http_filter_http_callout_done(void *envoy, const void *module, uint64_t id,
	envoy_dynamic_module_type_http_callout_result result, envoy_header *headers, size_t count,
	envoy_bytes *chunks, size_t chunk_count) {
	(void)envoy, (void)module, (void)id, (void)result, (void)headers, (void)count, (void)chunks;
	(void)chunk_count;
}

EXPORT void envoy_dynamic_module_on_http_filter_http_stream_headers(
	void *envoy, const void *module, uint64_t id, envoy_header *headers, size_t count, bool end) {
	(void)envoy, (void)module, (void)id, (void)headers, (void)count, (void)end;
}

EXPORT void envoy_dynamic_module_on_http_filter_http_stream_data(
	void *envoy, const void *module, uint64_t id, const envoy_bytes *chunks, size_t count, bool end) {
	(void)envoy, (void)module, (void)id, (void)chunks, (void)count, (void)end;
}

EXPORT void envoy_dynamic_module_on_http_filter_http_stream_trailers(
	void *envoy, const void *module, uint64_t id, envoy_header *trailers, size_t count) {
	(void)envoy, (void)module, (void)id, (void)trailers, (void)count;
}

EXPORT void envoy_dynamic_module_on_http_filter_http_stream_complete(
	void *envoy, const void *module, uint64_t id) {
	(void)envoy, (void)module, (void)id;
}

EXPORT void envoy_dynamic_module_on_http_filter_http_stream_reset(
	void *envoy, const void *module, uint64_t id, envoy_dynamic_module_type_http_stream_reset_reason reason) {
	(void)envoy, (void)module, (void)id, (void)reason;
}

EXPORT void envoy_dynamic_module_on_http_filter_downstream_above_write_buffer_high_watermark(
	void *envoy, const void *module) {
	(void)envoy, (void)module;
}

EXPORT void envoy_dynamic_module_on_http_filter_downstream_below_write_buffer_low_watermark(
	void *envoy, const void *module) {
	(void)envoy, (void)module;
}
