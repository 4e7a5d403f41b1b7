// Headers in the encoding of the proxy-wasm ABI: a count, the lengths of each name and value, and each
// text with a zero behind it.
#ifndef WEIR_HEADERS_H
#define WEIR_HEADERS_H

#include "host.h"

uint32_t count_headers(const char *block, uint32_t length);
void list_headers(const char *block, uint32_t count, module_header *to);
module_bytes move_in(char **to, const char *bytes, size_t length);

#endif
