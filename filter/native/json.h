// Values in JSON texts, in the form in which Envoy gives values of metadata to Wasm.
#ifndef WEIR_JSON_H
#define WEIR_JSON_H

#include <stdbool.h>
#include <stddef.h>

// A buffer is a text that grows.
typedef struct buffer {
	char *bytes;
	size_t length, room;
} buffer;

bool find_json(const char *json, size_t length, const char *path, size_t path_length, buffer *to);

#endif
