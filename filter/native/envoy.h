// Envoy's interface for dynamic modules: abi.h, whose version tools/native pins, and additions of
// later versions of Envoy.
#ifndef WEIR_ENVOY_H
#define WEIR_ENVOY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "abi.h"

// A function that Envoy finds in the file.
#define EXPORT __attribute__((visibility("default")))

typedef envoy_dynamic_module_type_module_buffer module_bytes;
typedef envoy_dynamic_module_type_envoy_buffer envoy_bytes;
typedef envoy_dynamic_module_type_envoy_http_header envoy_header;
typedef envoy_dynamic_module_type_module_http_header module_header;

// From Envoy 1.38: a call of a configuration, which no stream's end cancels. The call and its answer
// are on the main thread.
envoy_dynamic_module_type_http_callout_init_result
envoy_dynamic_module_callback_http_filter_config_http_callout(
	void *config, uint64_t *id, module_bytes cluster, module_header *headers, size_t count,
	module_bytes body, uint64_t timeout_milliseconds);

// From Envoy 1.38: the number of workers, and whether Envoy only checks its configuration. Both are for
// the main thread.
uint32_t envoy_dynamic_module_callback_get_concurrency(void);
bool envoy_dynamic_module_callback_is_validation_mode(void);

// From Envoy 1.38: truths in metadata.
bool envoy_dynamic_module_callback_http_get_metadata_bool(void *filter,
	envoy_dynamic_module_type_metadata_source source, module_bytes name_space, module_bytes key,
	bool *value);

// From Envoy 1.38: pointers that all modules of a process share.
bool envoy_dynamic_module_callback_get_shared_data(module_bytes key, void **data);
bool envoy_dynamic_module_callback_register_shared_data(module_bytes key, void *data);

// From Envoy 1.39: metrics outside a request.
#define LATER __attribute__((weak))
envoy_dynamic_module_type_metrics_result
envoy_dynamic_module_callback_http_filter_config_increment_counter(
	void *config, size_t id, module_bytes *labels, size_t count, uint64_t value) LATER;
envoy_dynamic_module_type_metrics_result
envoy_dynamic_module_callback_http_filter_config_increment_gauge(
	void *config, size_t id, module_bytes *labels, size_t count, uint64_t value) LATER;
envoy_dynamic_module_type_metrics_result
envoy_dynamic_module_callback_http_filter_config_decrement_gauge(
	void *config, size_t id, module_bytes *labels, size_t count, uint64_t value) LATER;
envoy_dynamic_module_type_metrics_result
envoy_dynamic_module_callback_http_filter_config_set_gauge(
	void *config, size_t id, module_bytes *labels, size_t count, uint64_t value) LATER;
envoy_dynamic_module_type_metrics_result
envoy_dynamic_module_callback_http_filter_config_record_histogram_value(
	void *config, size_t id, module_bytes *labels, size_t count, uint64_t value) LATER;

#endif
