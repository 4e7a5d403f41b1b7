// How wasm2c's code is compiled: without checks of bounds and with the memory at a fixed distance from
// its instance, see memory.c, and with a count of nested calls for each thread, see fault.c. The file
// comes before all others.
#ifndef WEIR_DEPTH_H
#define WEIR_DEPTH_H

#define WASM_RT_MEMCHECK_SIGNAL_HANDLER 1
#define WASM_RT_USE_STACK_DEPTH_COUNT 1
#define WASM_RT_MAX_CALL_STACK_DEPTH 1000
#include <stddef.h>
#include <wasm-rt.h>

// wasm-rt.h has one count for all threads.
#define wasm_rt_call_stack_depth weir_call_depth
extern _Thread_local uint32_t weir_call_depth
	__attribute__((tls_model("initial-exec"), visibility("hidden")));

// The memory begins this many bytes behind its instance: a page of the module, the largest page of the
// processors.
#define MEMORY_AT (1 << 16)
#define MEMORY_OF(m) ((uint8_t *)(m) + MEMORY_AT - offsetof(Z_weir_instance_t, w2c_memory))

#endif
