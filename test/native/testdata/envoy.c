// Takes Envoy's place before a built libweir.so: it loads a configuration, sends requests one after
// the other, and gives each callback of Envoy a small, fixed answer. A program that counts the
// instructions of send_request runs it: nearly all of them are the filter's. Time passes only from one
// request to the next, so that a slow machine does no more work.
//
//   envoy LIBWEIR.SO CONFIGURATION REQUESTS
//
// It prints how many requests passed, and how many the filter answered.
#include <dlfcn.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "registry.h"

static const struct { const char *name, *value; } request_lines[] = {
	{":authority", "api.example.com"}, {":path", "/v1/users/4711?expand=all"}, {":method", "GET"}, {":scheme", "https"},
	{"user-agent", "curl/8.5.0"}, {"accept", "*/*"}, {"x-api-key", "0123456789abcdef0123456789abcdef"},
	{"x-forwarded-for", "192.0.2.7"}, {"x-forwarded-proto", "https"},
	{"x-request-id", "7d9f2b8e-0c7e-4a51-9d0c-6c2b1f6f8a10"},
};
enum { LINES = sizeof request_lines / sizeof request_lines[0] };

static envoy_bytes bytes_of(const char *text) { return (envoy_bytes){(char *)text, strlen(text)}; }
static unsigned long answered, written;
static _Atomic int main_thread_is_called;

// The host's clock: 10 000 requests come in a second. It is far ahead of the machine's, so the host's
// thread for ticks sleeps until the end.
static _Atomic int64_t microseconds = 100000000000000;

int clock_gettime(clockid_t clock, struct timespec *t) {
	(void)clock;
	*t = (struct timespec){microseconds / 1000000, microseconds % 1000000 * 1000};
	return 0;
}

// Requests.
size_t envoy_dynamic_module_callback_http_get_headers_size(
	void *s, envoy_dynamic_module_type_http_header_type of) {
	(void)s;
	return of == envoy_dynamic_module_type_http_header_type_RequestHeader ? LINES : 0;
}
bool envoy_dynamic_module_callback_http_get_headers(
	void *s, envoy_dynamic_module_type_http_header_type of, envoy_header *to) {
	(void)s, (void)of;
	for (size_t n = 0; n < LINES; n++) {
		const char *name = request_lines[n].name, *value = request_lines[n].value;
		to[n] = (envoy_header){(char *)name, strlen(name), (char *)value, strlen(value)};
	}
	return true;
}
bool envoy_dynamic_module_callback_http_get_header(void *s, envoy_dynamic_module_type_http_header_type of,
	module_bytes name, envoy_bytes *value, size_t index, size_t *count) {
	(void)s, (void)of, (void)index, (void)count;
	for (size_t n = 0; n < LINES; n++) {
		if (strlen(request_lines[n].name) == name.length && memcmp(request_lines[n].name, name.ptr, name.length) == 0) {
			*value = bytes_of(request_lines[n].value);
			return true;
		}
	}
	return false;
}
bool envoy_dynamic_module_callback_http_set_header(
	void *s, envoy_dynamic_module_type_http_header_type of, module_bytes name, module_bytes value) {
	(void)s, (void)of, (void)name, (void)value;
	written++;
	return true;
}
bool envoy_dynamic_module_callback_http_set_filter_state_bytes(void *s, module_bytes key, module_bytes value) {
	(void)s, (void)key, (void)value;
	return true;
}
bool envoy_dynamic_module_callback_http_get_filter_state_bytes(void *s, module_bytes key, envoy_bytes *value) {
	(void)s, (void)key, (void)value;
	return false;
}
bool envoy_dynamic_module_callback_http_filter_get_attribute_string(
	void *s, envoy_dynamic_module_type_attribute_id attribute, envoy_bytes *value) {
	(void)s;
	*value = bytes_of("192.0.2.7:41234");
	return attribute == envoy_dynamic_module_type_attribute_id_SourceAddress;
}
bool envoy_dynamic_module_callback_http_filter_get_attribute_int(
	void *s, envoy_dynamic_module_type_attribute_id attribute, uint64_t *value) {
	(void)s, (void)attribute, (void)value;
	return false;
}
bool envoy_dynamic_module_callback_http_get_metadata_number(void *s,
	envoy_dynamic_module_type_metadata_source source, module_bytes filter, module_bytes key, double *value) {
	(void)s, (void)source, (void)filter, (void)key, (void)value;
	return false;
}
bool envoy_dynamic_module_callback_http_get_metadata_bool(void *s,
	envoy_dynamic_module_type_metadata_source source, module_bytes filter, module_bytes key, bool *value) {
	(void)s, (void)source, (void)filter, (void)key, (void)value;
	return false;
}
bool envoy_dynamic_module_callback_http_get_metadata_string(void *s,
	envoy_dynamic_module_type_metadata_source source, module_bytes filter, module_bytes key, envoy_bytes *value) {
	(void)s, (void)source, (void)filter, (void)key, (void)value;
	return false;
}
void envoy_dynamic_module_callback_http_send_response(void *s, uint32_t status, module_header *headers,
	size_t count, module_bytes body, module_bytes details) {
	(void)s, (void)status, (void)headers, (void)count, (void)body, (void)details;
	answered++;
}
void envoy_dynamic_module_callback_http_send_response_headers(
	void *s, module_header *headers, size_t count, bool end) {
	(void)s, (void)headers, (void)count, (void)end;
	answered++;
}
void envoy_dynamic_module_callback_http_filter_continue_decoding(void *s) { (void)s; }
void *envoy_dynamic_module_callback_http_filter_scheduler_new(void *s) { return s; }
void envoy_dynamic_module_callback_http_filter_scheduler_delete(void *scheduler) { (void)scheduler; }
void envoy_dynamic_module_callback_http_filter_scheduler_commit(void *scheduler, uint64_t event) {
	(void)scheduler, (void)event;
}

// Metrics.
#define DEFINE(kind) \
	envoy_dynamic_module_type_metrics_result envoy_dynamic_module_callback_http_filter_config_define_##kind( \
		void *config, module_bytes name, module_bytes *labels, size_t count, size_t *id) { \
		static size_t last; \
		(void)config, (void)name, (void)labels, (void)count; \
		*id = ++last; \
		return envoy_dynamic_module_type_metrics_result_Success; \
	}
#define CHANGE(function) \
	envoy_dynamic_module_type_metrics_result envoy_dynamic_module_callback_http_filter_##function( \
		void *of, size_t id, module_bytes *labels, size_t count, uint64_t value) { \
		(void)of, (void)id, (void)labels, (void)count, (void)value; \
		return envoy_dynamic_module_type_metrics_result_Success; \
	}
DEFINE(counter)
DEFINE(gauge)
DEFINE(histogram)
CHANGE(increment_counter)
CHANGE(increment_gauge)
CHANGE(decrement_gauge)
CHANGE(set_gauge)
CHANGE(record_histogram_value)
CHANGE(config_increment_counter)
CHANGE(config_increment_gauge)
CHANGE(config_decrement_gauge)
CHANGE(config_set_gauge)
CHANGE(config_record_histogram_value)

// The process.
uint32_t envoy_dynamic_module_callback_get_concurrency(void) { return 1; }
bool envoy_dynamic_module_callback_is_validation_mode(void) { return false; }
void *envoy_dynamic_module_callback_http_filter_config_scheduler_new(void *config) { return config; }
void envoy_dynamic_module_callback_http_filter_config_scheduler_delete(void *scheduler) { (void)scheduler; }
void envoy_dynamic_module_callback_http_filter_config_scheduler_commit(void *scheduler, uint64_t event) {
	(void)scheduler, (void)event;
	main_thread_is_called = 1;
}
envoy_dynamic_module_type_http_callout_init_result
envoy_dynamic_module_callback_http_filter_config_http_callout(void *config, uint64_t *id,
	module_bytes cluster, module_header *headers, size_t count, module_bytes body, uint64_t timeout) {
	(void)config, (void)id, (void)cluster, (void)headers, (void)count, (void)body, (void)timeout;
	return envoy_dynamic_module_type_http_callout_init_result_ClusterNotFound;
}
void envoy_dynamic_module_callback_log(envoy_dynamic_module_type_log_level level, module_bytes text) {
	if (level >= envoy_dynamic_module_type_log_level_Warn) {
		fprintf(stderr, "%.*s\n", (int)text.length, text.ptr);
	}
}

// Functions of libweir.so, by the end of their names.
#define FUNCTION(name) \
	static __typeof__(envoy_dynamic_module_on_##name) *on_##name
FUNCTION(program_init);
FUNCTION(http_filter_config_new);
FUNCTION(http_filter_config_scheduled);
FUNCTION(http_filter_new);
FUNCTION(http_filter_request_headers);
FUNCTION(http_filter_response_headers);
FUNCTION(http_filter_stream_complete);
FUNCTION(http_filter_destroy);

static void *find(void *library, const char *name) {
	void *function = dlsym(library, name);
	if (function == NULL) {
		fprintf(stderr, "cannot find %s: %s\n", name, dlerror());
		exit(1);
	}
	return function;
}
#define FIND(library, name) on_##name = find(library, "envoy_dynamic_module_on_" #name)

// send sends a request and, if it passes, the answer of a service.
static bool send(const void *plugin) {
	static char stream;
	unsigned long before = answered;
	microseconds += 100;
	const void *filter = on_http_filter_new(plugin, &stream);
	on_http_filter_request_headers(&stream, filter, true);
	bool passed = answered == before;
	on_http_filter_response_headers(&stream, filter, true);
	on_http_filter_stream_complete(&stream, filter);
	on_http_filter_destroy(filter);
	if (main_thread_is_called) {
		main_thread_is_called = 0;
		on_http_filter_config_scheduled(&stream, plugin, 0);
	}
	return passed;
}

// send_request is send, under a name that can be found.
__attribute__((noinline)) bool send_request(const void *plugin);
bool send_request(const void *plugin) { return send(plugin); }

int main(int count, char **arguments) {
	static char configuration;
	void *library = count == 4 ? dlopen(arguments[1], RTLD_NOW) : NULL;
	if (library == NULL) {
		fprintf(stderr, "cannot load the library: %s\n", count == 4 ? dlerror() : "three arguments are needed");
		return 1;
	}
	FIND(library, program_init);
	FIND(library, http_filter_config_new);
	FIND(library, http_filter_config_scheduled);
	FIND(library, http_filter_new);
	FIND(library, http_filter_request_headers);
	FIND(library, http_filter_response_headers);
	FIND(library, http_filter_stream_complete);
	FIND(library, http_filter_destroy);
	const void *plugin = on_program_init() == NULL
		? NULL
		: on_http_filter_config_new(&configuration, bytes_of("weir"), bytes_of(arguments[2]));
	if (plugin == NULL) {
		fprintf(stderr, "the library refuses the configuration\n");
		return 1;
	}
	for (int n = 0; n < 10; n++) { // The first requests also prepare later ones.
		send(plugin);
	}
	answered = written = 0;
	unsigned long requests = strtoul(arguments[3], NULL, 10), passed = 0;
	for (unsigned long n = 0; n < requests; n++) {
		passed += send_request(plugin);
	}
	printf("%lu passed, %lu answered, %lu headers written\n", passed, answered, written);
	return 0;
}
