// The part of wasm2c's header that driver.c and calls.c need.
#ifndef WEIR_H
#define WEIR_H

#include <wasm-rt.h>

typedef uint32_t u32;

typedef struct Z_weir_instance_t {
	wasm_rt_memory_t w2c_memory;
} Z_weir_instance_t;

struct Z_env_instance_t;

u32 Z_weirZ_malloc(Z_weir_instance_t *, u32);
void Z_weirZ_proxy_on_http_call_response(Z_weir_instance_t *, u32, u32, u32, u32, u32);
u32 Z_envZ_proxy_http_call(
	struct Z_env_instance_t *, u32, u32, u32, u32, u32, u32, u32, u32, u32, u32);
u32 Z_envZ_proxy_get_header_map_pairs(struct Z_env_instance_t *, u32, u32, u32);
u32 Z_envZ_proxy_get_header_map_value(struct Z_env_instance_t *, u32, u32, u32, u32, u32);
u32 Z_envZ_proxy_replace_header_map_value(struct Z_env_instance_t *, u32, u32, u32, u32, u32);
u32 Z_envZ_proxy_remove_header_map_value(struct Z_env_instance_t *, u32, u32, u32);
u32 Z_envZ_proxy_send_local_response(struct Z_env_instance_t *, u32, u32, u32, u32, u32, u32, u32, u32);
u32 Z_envZ_proxy_get_buffer_bytes(struct Z_env_instance_t *, u32, u32, u32, u32, u32);
u32 Z_envZ_proxy_get_shared_data(struct Z_env_instance_t *, u32, u32, u32, u32, u32);
u32 Z_envZ_proxy_set_shared_data(struct Z_env_instance_t *, u32, u32, u32, u32, u32);

#endif
