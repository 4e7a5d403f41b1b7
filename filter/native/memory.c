// The module's memory and tables, for wasm2c's code and for the host.
#include <stdarg.h>
#include <string.h>
#include <sys/mman.h>

#include "host.h"

#define PAGE_BITS 16
#define MOST_PAGES 65535u // so that the size fits in 32 bits

bool wasm_rt_is_initialized(void) { return true; }

void wasm_rt_init(void) {}

// reserve_instance reserves addresses for an instance and, behind it, for its memory. It returns the
// instance, all zero; NULL without memory.
instance *reserve_instance(void) {
	_Static_assert(sizeof(instance) <= MEMORY_AT, "the memory begins in the instance");
	const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
	instance *i = mmap(NULL, MEMORY_AT + RESERVED, PROT_NONE, flags, -1, 0);
	if (i == MAP_FAILED) {
		return NULL;
	}
	if (mprotect(i, MEMORY_AT, PROT_READ | PROT_WRITE) != 0) {
		munmap(i, MEMORY_AT + RESERVED);
		return NULL;
	}
	return i;
}

void wasm_rt_allocate_memory(wasm_rt_memory_t *m, uint32_t pages, uint32_t most) {
	m->data = MEMORY_OF(m);
	m->pages = pages;
	m->max_pages = most < MOST_PAGES ? most : MOST_PAGES;
	m->size = pages << PAGE_BITS;
	if (mprotect(m->data, m->size, PROT_READ | PROT_WRITE) != 0) {
		wasm_rt_trap(WASM_RT_TRAP_OOB);
	}
}

uint32_t wasm_rt_grow_memory(wasm_rt_memory_t *m, uint32_t delta) {
	uint32_t old = m->pages;
	if (delta > m->max_pages || old > m->max_pages - delta) {
		return UINT32_MAX;
	}
	if (mprotect(m->data, (size_t)(old + delta) << PAGE_BITS, PROT_READ | PROT_WRITE) != 0) {
		return UINT32_MAX;
	}
	m->pages = old + delta;
	m->size = m->pages << PAGE_BITS;
	return old;
}

// wasm_rt_free_memory frees a memory's bytes. Its addresses stay reserved: the instance's next memory is
// there, and all zero.
void wasm_rt_free_memory(wasm_rt_memory_t *m) {
	if (m->data != NULL) {
		madvise(m->data, m->size, MADV_DONTNEED);
		mprotect(m->data, m->size, PROT_NONE);
	}
	m->data = NULL;
}

// bytes_at returns bytes in the module's memory. Bytes beyond it are a fault of the module: no function
// of Envoy ever sees them.
char *bytes_at(instance *i, uint32_t at, uint32_t length) {
	const wasm_rt_memory_t *m = &i->module.w2c_memory;
	if (length > m->size || at > m->size - length) {
		wasm_rt_trap(WASM_RT_TRAP_OOB);
	}
	return (char *)m->data + at;
}

// put_number writes a number into the module's memory.
void put_number(instance *i, uint32_t at, uint32_t value) {
	memcpy(bytes_at(i, at, sizeof value), &value, sizeof value);
}

// new_bytes returns memory that the module allocates, NULL without memory. The module finds its address
// and its length at the two places.
char *new_bytes(instance *i, size_t length, uint32_t at, uint32_t length_at) {
	uint32_t to = length <= INT32_MAX ? Z_weirZ_malloc(&i->module, (uint32_t)length) : 0;
	if (to == 0) {
		return NULL;
	}
	put_number(i, at, to);
	put_number(i, length_at, (uint32_t)length);
	return bytes_at(i, to, (uint32_t)length);
}

// return_bytes gives the module bytes as new_bytes does; without bytes the address is 0.
uint32_t return_bytes(instance *i, const void *bytes, size_t length, uint32_t at, uint32_t length_at) {
	if (length == 0) {
		put_number(i, at, 0);
		put_number(i, length_at, 0);
		return OK;
	}
	char *to = new_bytes(i, length, at, length_at);
	if (to == NULL) {
		return INTERNAL_FAILURE;
	}
	memcpy(to, bytes, length);
	return OK;
}

void wasm_rt_allocate_funcref_table(wasm_rt_funcref_table_t *t, uint32_t elements, uint32_t most) {
	t->size = elements;
	t->max_size = most;
	t->data = calloc(elements, sizeof *t->data);
	if (t->data == NULL) {
		wasm_rt_trap(WASM_RT_TRAP_OOB);
	}
}

void wasm_rt_free_funcref_table(wasm_rt_funcref_table_t *t) {
	free(t->data);
	t->data = NULL;
}

// The types of functions that have been registered. Only Z_weir_init_module registers, once.
static struct {
	uint32_t parameters, results;
	wasm_rt_type_t types[64];
} types[256];
static uint32_t type_count;

uint32_t wasm_rt_register_func_type(uint32_t parameters, uint32_t results, ...) {
	const uint32_t most = sizeof types[0].types / sizeof types[0].types[0];
	if (parameters + results > most || type_count == sizeof types / sizeof types[0]) {
		abort(); // The module is the build's own: a test loads it.
	}
	va_list list;
	va_start(list, results);
	memset(&types[type_count], 0, sizeof types[0]);
	types[type_count].parameters = parameters;
	types[type_count].results = results;
	for (uint32_t i = 0; i < parameters + results; i++) {
		types[type_count].types[i] = va_arg(list, wasm_rt_type_t);
	}
	va_end(list);
	uint32_t i = 0;
	while (memcmp(&types[i], &types[type_count], sizeof types[0]) != 0) {
		i++;
	}
	if (i == type_count) {
		type_count++;
	}
	return i + 1;
}
