// Header maps, replies and answers.
#include "headers.h"

#include <string.h>

// Numbers of the ABI's maps and buffers.
enum {
	REQUEST_HEADERS = 0,
	REQUEST_TRAILERS = 1,
	RESPONSE_HEADERS = 2,
	RESPONSE_TRAILERS = 3,
	ANSWER_HEADERS = 6,
	ANSWER_BODY = 4,
	CONFIGURATION = 7,
};

// count_headers returns the number of headers in a block. A block that ends too early is a fault of
// the module.
uint32_t count_headers(const char *block, uint32_t length) {
	uint32_t count = 0, lengths[2];
	uint64_t used = sizeof count;
	if (length < sizeof count) {
		return 0;
	}
	memcpy(&count, block, sizeof count);
	used += (uint64_t)count * sizeof lengths;
	for (uint32_t n = 0; n < count && used <= length; n++) {
		memcpy(lengths, block + sizeof count + n * sizeof lengths, sizeof lengths);
		used += (uint64_t)lengths[0] + lengths[1] + 2;
	}
	if (used > length) {
		wasm_rt_trap(WASM_RT_TRAP_OOB);
	}
	return count;
}

// list_headers lists the headers of a block that count_headers has counted.
void list_headers(const char *block, uint32_t count, module_header *to) {
	uint32_t lengths[2];
	const char *bytes = block + sizeof count + count * sizeof lengths;
	for (uint32_t n = 0; n < count; n++) {
		memcpy(lengths, block + sizeof count + n * sizeof lengths, sizeof lengths);
		to[n] = (module_header){bytes, lengths[0], bytes + lengths[0] + 1, lengths[1]};
		bytes += lengths[0] + lengths[1] + 2;
	}
}

// move_in copies bytes to a place, returns the copy and sets the place behind it.
module_bytes move_in(char **to, const char *bytes, size_t length) {
	memcpy(*to, bytes, length);
	module_bytes copy = {*to, length};
	*to += length;
	return copy;
}

// write_headers writes headers into a block of size bytes.
static void write_headers(char *block, const envoy_header *headers, uint32_t count) {
	memcpy(block, &count, sizeof count);
	char *lengths = block + sizeof count, *bytes = lengths + count * 2 * sizeof count;
	for (uint32_t n = 0; n < count; n++) {
		const envoy_header *h = &headers[n];
		uint32_t pair[2] = {(uint32_t)h->key_length, (uint32_t)h->value_length};
		memcpy(lengths, pair, sizeof pair);
		lengths += sizeof pair;
		memcpy(bytes, h->key_ptr, pair[0]);
		bytes += pair[0];
		*bytes++ = 0;
		memcpy(bytes, h->value_ptr, pair[1]);
		bytes += pair[1];
		*bytes++ = 0;
	}
}

// envoy_map returns Envoy's number of a header map of the running stream.
static bool envoy_map(uint32_t map, envoy_dynamic_module_type_http_header_type *to) {
	switch (map) {
	case REQUEST_HEADERS: *to = envoy_dynamic_module_type_http_header_type_RequestHeader; return true;
	case REQUEST_TRAILERS: *to = envoy_dynamic_module_type_http_header_type_RequestTrailer; return true;
	case RESPONSE_HEADERS: *to = envoy_dynamic_module_type_http_header_type_ResponseHeader; return true;
	case RESPONSE_TRAILERS: *to = envoy_dynamic_module_type_http_header_type_ResponseTrailer; return true;
	default: return false;
	}
}

// has_map reports whether the header maps of the selected stream can be used: in its own callback.
static bool has_map(const instance *i) {
	return i->running != NULL && i->selected == i->running && i->running->envoy != NULL;
}

// Envoy's list of a stream's headers, which grows to the longest list.
static _Thread_local envoy_header *listed;
static _Thread_local size_t listed_room;

// list_map lists a header map of the running stream.
static const envoy_header *list_map(
	const instance *i, envoy_dynamic_module_type_http_header_type map, size_t *count) {
	*count = envoy_dynamic_module_callback_http_get_headers_size(i->running->envoy, map);
	if (*count > listed_room) {
		free(listed);
		listed_room = *count * 2;
		listed = malloc(listed_room * sizeof *listed);
	}
	if (listed == NULL) {
		listed_room = 0;
		return NULL;
	}
	return envoy_dynamic_module_callback_http_get_headers(i->running->envoy, map, listed) ? listed : NULL;
}

u32 Z_envZ_proxy_get_header_map_pairs(struct Z_env_instance_t *env, u32 map, u32 block_at, u32 length_at) {
	instance *i = (instance *)env;
	envoy_dynamic_module_type_http_header_type of;
	if (!has_map(i) || !envoy_map(map, &of)) {
		return BAD_ARGUMENT;
	}
	size_t count = 0;
	const envoy_header *headers = list_map(i, of, &count);
	if (headers == NULL) {
		return NOT_FOUND;
	}
	provoke(i, headers, count);
	uint64_t length = sizeof(uint32_t) + count * 2 * sizeof(uint32_t);
	for (size_t n = 0; n < count; n++) {
		length += headers[n].key_length + headers[n].value_length + 2;
	}
	char *block = new_bytes(i, length, block_at, length_at);
	if (block == NULL) {
		return INTERNAL_FAILURE;
	}
	write_headers(block, headers, (uint32_t)count);
	return OK;
}

// return_answer_header returns a header of the answer that the module is told of.
static uint32_t return_answer_header(instance *i, const char *name, uint32_t length, u32 at, u32 length_at) {
	const answer *a = i->answer;
	for (size_t n = 0; a != NULL && n < a->header_count; n++) {
		const envoy_header *h = &a->headers[n];
		if (h->key_length == length && memcmp(h->key_ptr, name, length) == 0) {
			return return_bytes(i, h->value_ptr, h->value_length, at, length_at);
		}
	}
	return NOT_FOUND;
}

u32 Z_envZ_proxy_get_header_map_value(
	struct Z_env_instance_t *env, u32 map, u32 name_at, u32 name_length, u32 value_at, u32 length_at) {
	instance *i = (instance *)env;
	const char *name = bytes_at(i, name_at, name_length);
	if (map == ANSWER_HEADERS) {
		return return_answer_header(i, name, name_length, value_at, length_at);
	}
	envoy_dynamic_module_type_http_header_type of;
	envoy_bytes value = {NULL, 0};
	if (!has_map(i) || !envoy_map(map, &of)) {
		return BAD_ARGUMENT;
	}
	if (!envoy_dynamic_module_callback_http_get_header(
			i->running->envoy, of, (module_bytes){name, name_length}, &value, 0, NULL)) {
		return NOT_FOUND;
	}
	return return_bytes(i, value.ptr, value.length, value_at, length_at);
}

// set_header sets a header of the running stream, or removes it if the value is NULL.
static uint32_t set_header(const instance *i, uint32_t map, module_bytes name, module_bytes value) {
	envoy_dynamic_module_type_http_header_type of;
	if (!has_map(i) || !envoy_map(map, &of)) {
		return BAD_ARGUMENT;
	}
	return envoy_dynamic_module_callback_http_set_header(i->running->envoy, of, name, value) ? OK : NOT_FOUND;
}

u32 Z_envZ_proxy_replace_header_map_value(
	struct Z_env_instance_t *env, u32 map, u32 name_at, u32 name_length, u32 value_at, u32 length) {
	instance *i = (instance *)env;
	return set_header(i, map, (module_bytes){bytes_at(i, name_at, name_length), name_length},
		(module_bytes){bytes_at(i, value_at, length), length});
}

u32 Z_envZ_proxy_remove_header_map_value(struct Z_env_instance_t *env, u32 map, u32 name_at, u32 name_length) {
	instance *i = (instance *)env;
	return set_header(
		i, map, (module_bytes){bytes_at(i, name_at, name_length), name_length}, (module_bytes){NULL, 0});
}

// copy_reply copies a reply out of the module's memory. It leaves room for GRPC_LINES headers before
// the reply's own.
static reply *copy_reply(const char *block, uint32_t count, uint32_t block_length, module_bytes body,
	module_bytes details) {
	size_t lines = ((size_t)count + GRPC_LINES) * sizeof(module_header);
	reply *r = malloc(sizeof *r + lines + block_length + body.length + details.length);
	if (r == NULL) {
		return NULL;
	}
	r->headers = (module_header *)(r + 1) + GRPC_LINES;
	r->header_count = count;
	char *bytes = (char *)(r + 1) + lines;
	list_headers(move_in(&bytes, block, block_length).ptr, count, r->headers);
	r->body = move_in(&bytes, body.ptr, body.length);
	r->details = move_in(&bytes, details.ptr, details.length);
	return r;
}

u32 Z_envZ_proxy_send_local_response(struct Z_env_instance_t *env, u32 status, u32 details_at, u32 details_length,
	u32 body_at, u32 body_length, u32 block_at, u32 block_length, u32 grpc_status) {
	instance *i = (instance *)env;
	const char *block = bytes_at(i, block_at, block_length);
	uint32_t count = count_headers(block, block_length);
	if (i->selected == NULL) {
		return BAD_ARGUMENT;
	}
	reply *r = copy_reply(block, count, block_length, (module_bytes){bytes_at(i, body_at, body_length), body_length},
		(module_bytes){bytes_at(i, details_at, details_length), details_length});
	if (r == NULL) {
		return INTERNAL_FAILURE;
	}
	r->grpc = (int32_t)grpc_status >= 0;
	r->status = r->grpc ? grpc_status : status;
	note_reply(i->selected, r);
	return OK;
}

u32 Z_envZ_proxy_continue_stream(struct Z_env_instance_t *env, u32 kind) {
	instance *i = (instance *)env;
	if (kind != 0 || i->selected == NULL) {
		return BAD_ARGUMENT;
	}
	note_resume(i->selected);
	return OK;
}

u32 Z_envZ_proxy_set_effective_context(struct Z_env_instance_t *env, u32 context) {
	instance *i = (instance *)env;
	stream *s = i->running != NULL && i->running->context == context ? i->running : find_paused(i, context);
	if (s == NULL) {
		return BAD_ARGUMENT;
	}
	i->selected = s;
	return OK;
}

// return_answer_body returns the whole body of the answer that the module is told of.
static uint32_t return_answer_body(instance *i, u32 at, u32 length_at) {
	const answer *a = i->answer;
	if (a == NULL || a->body_length == 0) {
		return NOT_FOUND;
	}
	char *bytes = new_bytes(i, a->body_length, at, length_at);
	if (bytes == NULL) {
		return INTERNAL_FAILURE;
	}
	for (size_t n = 0; n < a->chunk_count; n++) {
		move_in(&bytes, a->chunks[n].ptr, a->chunks[n].length);
	}
	return OK;
}

u32 Z_envZ_proxy_get_buffer_bytes(
	struct Z_env_instance_t *env, u32 buffer, u32 from, u32 most, u32 at, u32 length_at) {
	(void)from, (void)most; // The module asks for whole buffers.
	instance *i = (instance *)env;
	if (buffer == ANSWER_BODY) {
		return return_answer_body(i, at, length_at);
	}
	if (buffer != CONFIGURATION || i->root == NULL) {
		return NOT_FOUND;
	}
	const text *c = &i->root->plugin->configuration;
	return c->length > 0 ? return_bytes(i, c->bytes, c->length, at, length_at) : NOT_FOUND;
}
