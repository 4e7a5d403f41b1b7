// Properties of requests, which Envoy calls attributes and metadata, and the filter state.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "host.h"
#include "json.h"

// The properties that are attributes, by their path. Levels of a path are separated by a zero.
static const struct property {
	const char *path;
	size_t length;
	envoy_dynamic_module_type_attribute_id attribute;
	bool number; // eight bytes, the lowest first
} properties[] = {
#define TEXT(path, name) {path, sizeof path - 1, envoy_dynamic_module_type_attribute_id_##name, false}
#define NUMBER(path, name) {path, sizeof path - 1, envoy_dynamic_module_type_attribute_id_##name, true}
	TEXT("source\0address", SourceAddress),
	TEXT("xds\0cluster_name", XdsClusterName),
	TEXT("connection\0uri_san_peer_certificate", ConnectionUriSanPeerCertificate),
	TEXT("connection\0subject_peer_certificate", ConnectionSubjectPeerCertificate),
	TEXT("response\0code_details", ResponseCodeDetails),
	NUMBER("response\0flags", ResponseFlags),
};

static bool is_path(const char *path, size_t length, const char *want, size_t want_length) {
	return length == want_length && memcmp(path, want, length) == 0;
}

#define IS_PATH(path, length, want) is_path(path, length, want, sizeof want - 1)

// return_attribute returns an attribute of the running stream.
static uint32_t return_attribute(instance *i, const struct property *p, u32 at, u32 length_at) {
	if (p->number) {
		uint64_t number = 0;
		return envoy_dynamic_module_callback_http_filter_get_attribute_int(i->running->envoy, p->attribute, &number)
			? return_bytes(i, &number, sizeof number, at, length_at)
			: NOT_FOUND;
	}
	envoy_bytes value = {NULL, 0};
	return envoy_dynamic_module_callback_http_filter_get_attribute_string(i->running->envoy, p->attribute, &value)
		? return_bytes(i, value.ptr, value.length, at, length_at)
		: NOT_FOUND;
}

// return_below returns a value below a key of the running stream's metadata. Envoy gives a module no
// such values. So a filter before this one puts the whole key as JSON into the filter state, under
// weir.metadata. and the names of the filter and of the key, see docs/run/native.md.
static uint32_t return_below(
	instance *i, module_bytes filter, module_bytes key, const char *path, size_t length, u32 at, u32 length_at) {
	char name[256];
	int n = snprintf(name, sizeof name, "weir.metadata.%.*s.%.*s", (int)filter.length, filter.ptr, (int)key.length,
		key.ptr);
	envoy_bytes json = {NULL, 0};
	if (n < 0 || (size_t)n >= sizeof name ||
		!envoy_dynamic_module_callback_http_get_filter_state_bytes(
			i->running->envoy, (module_bytes){name, (size_t)n}, &json)) {
		return NOT_FOUND;
	}
	static _Thread_local buffer value; // A fault in return_bytes must not lose it.
	value.length = 0;
	return find_json(json.ptr, json.length, path, length, &value)
		? return_bytes(i, value.bytes, value.length, at, length_at)
		: NOT_FOUND;
}

// return_metadata returns a value of the running stream's metadata: a text, or a number or a truth in
// the form in which Envoy gives it to Wasm. Path is a filter's name, a zero, a key, and the names below the key.
static uint32_t return_metadata(instance *i, const char *path, size_t length, u32 at, u32 length_at) {
	const envoy_dynamic_module_type_metadata_source dynamic = envoy_dynamic_module_type_metadata_source_Dynamic;
	const char *end = path + length, *zero = memchr(path, 0, length);
	if (zero == NULL) {
		return NOT_FOUND;
	}
	module_bytes filter = {path, (size_t)(zero - path)};
	module_bytes key = {zero + 1, (size_t)(end - zero) - 1};
	const char *below = memchr(key.ptr, 0, key.length);
	if (below != NULL) {
		key.length = (size_t)(below - key.ptr);
		return return_below(i, filter, key, below + 1, (size_t)(end - below) - 1, at, length_at);
	}
	double number;
	bool truth;
	envoy_bytes value = {NULL, 0};
	// Envoy logs an error for a value that is no text, so texts come last.
	if (envoy_dynamic_module_callback_http_get_metadata_number(i->running->envoy, dynamic, filter, key, &number)) {
		return return_bytes(i, &number, sizeof number, at, length_at);
	}
	if (envoy_dynamic_module_callback_http_get_metadata_bool(i->running->envoy, dynamic, filter, key, &truth)) {
		return return_bytes(i, &truth, 1, at, length_at);
	}
	if (envoy_dynamic_module_callback_http_get_metadata_string(i->running->envoy, dynamic, filter, key, &value)) {
		return return_bytes(i, value.ptr, value.length, at, length_at);
	}
	return NOT_FOUND;
}

// return_node returns the node's id, which Envoy does not give to modules: from Envoy's command line,
// else from a variable, as Istio starts Envoy without the option.
static uint32_t return_node(instance *i, u32 at, u32 length_at) {
	static const char option[] = "--service-node";
	static char line[1 << 16];
	static size_t length;
	static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
	pthread_mutex_lock(&lock);
	FILE *f = length == 0 ? fopen("/proc/self/cmdline", "rb") : NULL;
	if (f != NULL) {
		length = fread(line, 1, sizeof line - 1, f);
		fclose(f);
	}
	pthread_mutex_unlock(&lock);
	for (const char *word = line; word < line + length; word += strlen(word) + 1) {
		size_t n = sizeof option - 1;
		if (strncmp(word, option, n) != 0) {
			continue;
		}
		if (word[n] == '=') {
			return return_bytes(i, word + n + 1, strlen(word + n + 1), at, length_at);
		}
		if (word[n] == 0 && word + n + 1 < line + length) {
			return return_bytes(i, word + n + 1, strlen(word + n + 1), at, length_at);
		}
	}
	const char *name = getenv("WEIR_NODE_ID");
	return name != NULL ? return_bytes(i, name, strlen(name), at, length_at) : NOT_FOUND;
}

u32 Z_envZ_proxy_get_property(struct Z_env_instance_t *env, u32 path_at, u32 path_length, u32 at, u32 length_at) {
	instance *i = (instance *)env;
	const char *path = bytes_at(i, path_at, path_length);
	if (IS_PATH(path, path_length, "plugin_root_id") || IS_PATH(path, path_length, "plugin_name")) {
		return i->root == NULL ? NOT_FOUND
				       : return_bytes(i, i->root->plugin->name.bytes, i->root->plugin->name.length, at, length_at);
	}
	if (IS_PATH(path, path_length, "xds\0node\0id")) {
		return return_node(i, at, length_at);
	}
	if (IS_PATH(path, path_length, "weir_host")) { // Operators see it in the node's version.
		return return_bytes(i, "native", 6, at, length_at);
	}
	if (i->running == NULL || i->selected != i->running || i->running->envoy == NULL) {
		return NOT_FOUND;
	}
	for (size_t n = 0; n < sizeof properties / sizeof properties[0]; n++) {
		if (is_path(path, path_length, properties[n].path, properties[n].length)) {
			return return_attribute(i, &properties[n], at, length_at);
		}
	}
	static const char metadata[] = "metadata\0filter_metadata";
	if (path_length > sizeof metadata && memcmp(path, metadata, sizeof metadata) == 0) {
		return return_metadata(i, path + sizeof metadata, path_length - sizeof metadata, at, length_at);
	}
	return NOT_FOUND;
}

// The filter state has the names that it has with Wasm, so that access logs need not change.
u32 Z_envZ_proxy_set_property(
	struct Z_env_instance_t *env, u32 name_at, u32 name_length, u32 value_at, u32 value_length) {
	instance *i = (instance *)env;
	static const char prefix[] = "wasm.";
	char name[64];
	const size_t n = sizeof prefix - 1;
	const char *bytes = bytes_at(i, name_at, name_length);
	char *value = bytes_at(i, value_at, value_length);
	if (i->selected == NULL || i->selected->envoy == NULL || name_length > sizeof name - n) {
		return BAD_ARGUMENT;
	}
	memcpy(name, prefix, n);
	memcpy(name + n, bytes, name_length);
	note_state(i->selected, (text){name, n + name_length}, (text){value, value_length});
	return OK;
}
