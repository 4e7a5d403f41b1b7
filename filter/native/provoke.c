// Faults on demand, for tests: a request with the header x-weir-fault makes the module fault. Only
// build.sh --faults has it.
#include "host.h"

#ifdef PROVOKE_FAULTS
#include <string.h>

// exhaust calls itself as wasm2c's code does, until its count of nested calls is exhausted.
static uint32_t exhaust(volatile uint32_t n) {
	if (++wasm_rt_call_stack_depth > WASM_RT_MAX_CALL_STACK_DEPTH) {
		wasm_rt_trap(WASM_RT_TRAP_EXHAUSTION);
	}
	uint32_t below = n < UINT32_MAX ? exhaust(n + 1) : 0;
	--wasm_rt_call_stack_depth;
	return below + n;
}

// touch reads or writes the module's memory at an address plus an offset, as wasm2c's code does.
static void touch(instance *i, uint32_t at, uint32_t offset, bool write) {
	volatile uint8_t *byte = i->module.w2c_memory.data + (uint64_t)at + offset;
	if (write) {
		*byte = 1;
	} else {
		(void)*byte;
	}
}

// fault makes the fault that a header names.
static void fault(instance *i, const char *kind, size_t length) {
	uint32_t size = i->module.w2c_memory.size;
#define IS(name) (length == sizeof name - 1 && memcmp(kind, name, length) == 0)
	if (IS("read")) {
		touch(i, size, 0, false);
	} else if (IS("write")) {
		touch(i, UINT32_MAX, UINT32_MAX, true);
	} else if (IS("pointer")) {
		bytes_at(i, size - 1, 2);
	} else if (IS("stack")) {
		exhaust(0);
	} else if (IS("division")) {
		wasm_rt_trap(WASM_RT_TRAP_DIV_BY_ZERO);
	} else if (IS("overflow")) {
		wasm_rt_trap(WASM_RT_TRAP_INT_OVERFLOW);
	} else if (IS("unreachable")) {
		wasm_rt_trap(WASM_RT_TRAP_UNREACHABLE);
	} else if (IS("call")) {
		wasm_rt_trap(WASM_RT_TRAP_CALL_INDIRECT);
	}
}

// provoke makes the fault that a request asks for. A kind with the prefix once- faults in the request's
// first decision alone.
void provoke(instance *i, const envoy_header *headers, size_t count) {
	static _Thread_local uint64_t attempts;
	static const char name[] = "x-weir-fault", once[] = "once-";
	for (size_t n = 0; n < count; n++) {
		const envoy_header *h = &headers[n];
		if (h->key_length != sizeof name - 1 || memcmp(h->key_ptr, name, h->key_length) != 0) {
			continue;
		}
		const char *kind = h->value_ptr;
		size_t length = h->value_length, skipped = sizeof once - 1;
		if (length < skipped || memcmp(kind, once, skipped) != 0) {
			fault(i, kind, length);
		} else if (attempts++ % 2 == 0) {
			fault(i, kind + skipped, length - skipped);
		}
	}
}
#endif
