// Gives parts of the native host random input: the reader of JSON, header maps, and shared
// data. It is compiled with the sanitizers of addresses and of undefined behaviour, which end it
// at the first mistake. Envoy itself cannot run under them. The functions of Envoy are replaced.
//
//   driver SEED ROUNDS
#include <stdio.h>
#include <string.h>

#include "headers.h"
#include "json.h"
#include "registry.h"

static uint64_t seed;

static uint32_t draw(uint32_t below) {
	seed = seed * 6364136223846793005u + 1442695040888963407u;
	return (uint32_t)(seed >> 33) % below;
}

// The module's memory is a block of its own, so that each access beyond it is seen.
enum { SIZE = 4096, ROOM = 1024, LONGEST_TEXT = 512 };
static instance module;
static stream running;
static plugin loaded;
static jmp_buf back;
static uint32_t allocated;

void wasm_rt_trap(wasm_rt_trap_t trap) { longjmp(back, (int)trap); }

// The module's memory for the host's bytes is behind its own. It begins anew with each call.
uint32_t Z_weirZ_malloc(Z_weir_instance_t *m, uint32_t length) {
	(void)m;
	if (length > ROOM - allocated) {
		return 0;
	}
	allocated += length;
	return SIZE - ROOM + allocated - length;
}

stream *find_paused(instance *i, uint32_t context) { return context == 1 ? i->running : NULL; }
void note_resume(stream *s) { (void)s; }
void note_reply(stream *s, reply *r) {
	(void)s;
	for (size_t n = 0; n < r->header_count; n++) { // Each byte can be read.
		seed += r->headers[n].key_length ? (uint64_t)r->headers[n].key_ptr[r->headers[n].key_length - 1] : 0;
		seed += r->headers[n].value_length ? (uint64_t)r->headers[n].value_ptr[r->headers[n].value_length - 1] : 0;
	}
	free(r);
}

// Envoy's functions.
static envoy_header request_headers[64];
static size_t header_count;

size_t envoy_dynamic_module_callback_http_get_headers_size(
	void *s, envoy_dynamic_module_type_http_header_type of) {
	(void)s, (void)of;
	return header_count;
}

bool envoy_dynamic_module_callback_http_get_headers(
	void *s, envoy_dynamic_module_type_http_header_type of, envoy_header *to) {
	(void)s, (void)of;
	memcpy(to, request_headers, header_count * sizeof *to);
	return true;
}

bool envoy_dynamic_module_callback_http_get_header(void *s, envoy_dynamic_module_type_http_header_type of,
	module_bytes name, envoy_bytes *value, size_t index, size_t *count) {
	(void)s, (void)of, (void)name, (void)index, (void)count;
	*value = (envoy_bytes){request_headers[0].value_ptr, request_headers[0].value_length};
	return header_count > 0;
}

bool envoy_dynamic_module_callback_http_set_header(
	void *s, envoy_dynamic_module_type_http_header_type of, module_bytes name, module_bytes value) {
	(void)s, (void)of;
	seed += (name.length ? (uint64_t)name.ptr[name.length - 1] : 0) + (value.length ? (uint64_t)value.ptr[0] : 0);
	return true;
}

// random_json writes text that is nearly JSON.
static size_t random_json(char *to, size_t room) {
	static const char *const parts[] = {"{", "}", "[", "]", ",", ":", "\"a\"", "\"b", "\"", "\\u12", "\\ud83d\\ude00",
		"\\n", "1e9", "-", "true", "nul", "null", " ", "\xff", "\"a\":", "{\"a\":", "[[[[[[[["};
	size_t n = 0, count = draw(60);
	while (count-- > 0) {
		const char *part = parts[draw(sizeof parts / sizeof parts[0])];
		if (n + strlen(part) > room) {
			break;
		}
		memcpy(to + n, part, strlen(part));
		n += strlen(part);
	}
	return draw(2) ? n : draw((uint32_t)n + 1); // It may end anywhere.
}

static void read_json(void) {
	char text[LONGEST_TEXT];
	size_t length = random_json(text, sizeof text);
	char *exact = malloc(length > 0 ? length : 1); // A byte beyond the text must not be read.
	memcpy(exact, text, length);
	static const char path[] = "a\0a\0b";
	buffer found = {0};
	find_json(exact, length, path, draw(sizeof path), &found);
	free(found.bytes);
	free(exact);
}

// at draws an address, now and then beyond the memory.
static uint32_t at(void) { return draw(8) == 0 ? (uint32_t)seed : draw(SIZE - ROOM); }
// size draws a length.
static uint32_t size(void) { return draw(16) == 0 ? (uint32_t)seed : draw(48); }

// call_host makes one call of the module with random arguments.
static void call_host(void) {
	struct Z_env_instance_t *env = (struct Z_env_instance_t *)&module;
	uint32_t a = at(), al = size(), b = at(), bl = size();
	switch (draw(10)) {
	case 0: Z_envZ_proxy_get_header_map_pairs(env, draw(8), a, b); break;
	case 1: Z_envZ_proxy_get_header_map_value(env, draw(8), a, al, b, at()); break;
	case 2: Z_envZ_proxy_replace_header_map_value(env, draw(8), a, al, b, bl); break;
	case 3: Z_envZ_proxy_remove_header_map_value(env, draw(8), a, al); break;
	case 4: Z_envZ_proxy_send_local_response(env, 429, a, al, b, bl, at(), size(), draw(2) - 1); break;
	case 5: Z_envZ_proxy_get_buffer_bytes(env, draw(8), 0, 0, a, b); break;
	case 6: Z_envZ_proxy_get_shared_data(env, a, al, b, at(), at()); break;
	default: Z_envZ_proxy_set_shared_data(env, a, al, b, bl, draw(3)); break;
	}
}

// set_up draws the memory's contents, the headers, the answer and the streams.
static void set_up(char *strings, uint32_t most_headers) {
	static answer told;
	static envoy_bytes chunks[2];
	for (uint32_t n = 0; n < SIZE; n++) { // Many small numbers: lengths that fit.
		module.module.w2c_memory.data[n] = draw(4) == 0 ? (uint8_t)draw(256) : (uint8_t)(draw(8) == 0);
	}
	header_count = draw(most_headers + 1);
	for (size_t n = 0; n < header_count; n++) {
		request_headers[n] = (envoy_header){strings, draw(64), strings, draw(64)};
	}
	chunks[0] = chunks[1] = (envoy_bytes){strings, draw(64)};
	told = (answer){request_headers, header_count, chunks, draw(3), 0};
	for (size_t n = 0; n < told.chunk_count; n++) {
		told.body_length += chunks[n].length;
	}
	module.root = module.roots;
	module.answer = draw(2) ? &told : NULL;
	module.running = draw(4) ? &running : NULL;
	module.selected = module.running;
	allocated = 0;
}

int main(int count, char **arguments) {
	static root first = {.plugin = &loaded};
	seed = strtoull(count > 1 ? arguments[1] : "1", NULL, 10);
	unsigned long rounds = strtoul(count > 2 ? arguments[2] : "1000", NULL, 10);
	static unsigned long faults, calls; // static: a jump back keeps them
	module.module.w2c_memory.data = malloc(SIZE);
	module.module.w2c_memory.size = SIZE;
	module.roots = &first;
	running.envoy = &running;
	loaded.configuration = (text){strdup("configuration"), 13};
	char *strings = calloc(64, 1);
	if (!init_shared_data()) {
		return 1;
	}
	for (unsigned long n = 0; n < rounds; n++) {
		read_json();
		set_up(strings, (uint32_t)n % 64); // So the list of headers grows.
		if (setjmp(back) == 0) {
			call_host();
			calls++;
		} else {
			faults++;
		}
	}
	printf("%lu calls, %lu faults\n", calls, faults);
	return 0;
}
