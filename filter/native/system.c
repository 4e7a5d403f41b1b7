// The log, clocks, randomness and the process's environment.
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

#include "host.h"

extern char **environ;

// write_log writes a line to Envoy's log.
void write_log(envoy_dynamic_module_type_log_level level, const char *format, ...) {
	char line[512];
	va_list list;
	va_start(list, format);
	int n = vsnprintf(line, sizeof line, format, list);
	va_end(list);
	size_t length = n < 0 ? 0 : (size_t)n < sizeof line ? (size_t)n : sizeof line - 1;
	envoy_dynamic_module_callback_log(level, (module_bytes){line, length});
}

u32 Z_envZ_proxy_log(struct Z_env_instance_t *env, u32 level, u32 at, u32 length) {
	instance *i = (instance *)env;
	if (level > envoy_dynamic_module_type_log_level_Critical) { // Both count the levels alike.
		return BAD_ARGUMENT;
	}
	envoy_dynamic_module_callback_log(
		(envoy_dynamic_module_type_log_level)level, (module_bytes){bytes_at(i, at, length), length});
	return OK;
}

typedef struct Z_wasi_snapshot_preview1_instance_t wasi;

// The errors of WASI.
enum { SUCCESS = 0, BAD_FILE = 8, BAD_VALUE = 28, IO_ERROR = 29 };

u32 Z_wasi_snapshot_preview1Z_clock_time_get(wasi *w, u32 clock, u64 precision, u32 at) {
	(void)precision;
	struct timespec t;
	if (clock > 1 || clock_gettime(clock == 0 ? CLOCK_REALTIME : CLOCK_MONOTONIC, &t) != 0) {
		return BAD_VALUE;
	}
	uint64_t nanoseconds = (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
	memcpy(bytes_at((instance *)w, at, sizeof nanoseconds), &nanoseconds, sizeof nanoseconds);
	return SUCCESS;
}

u32 Z_wasi_snapshot_preview1Z_random_get(wasi *w, u32 at, u32 length) {
	char *to = bytes_at((instance *)w, at, length);
	while (length > 0) {
		ssize_t n = getrandom(to, length, 0);
		if (n < 0 && errno == EINTR) {
			continue;
		}
		if (n <= 0) {
			return IO_ERROR;
		}
		to += n;
		length -= (u32)n;
	}
	return SUCCESS;
}

u32 Z_wasi_snapshot_preview1Z_args_sizes_get(wasi *w, u32 count_at, u32 size_at) {
	put_number((instance *)w, count_at, 0);
	put_number((instance *)w, size_at, 0);
	return SUCCESS;
}

u32 Z_wasi_snapshot_preview1Z_args_get(wasi *w, u32 list_at, u32 bytes_at) {
	(void)w, (void)list_at, (void)bytes_at;
	return SUCCESS;
}

u32 Z_wasi_snapshot_preview1Z_environ_sizes_get(wasi *w, u32 count_at, u32 size_at) {
	uint32_t count = 0, size = 0;
	for (char **e = environ; *e != NULL; e++) {
		count++;
		size += (uint32_t)strlen(*e) + 1;
	}
	put_number((instance *)w, count_at, count);
	put_number((instance *)w, size_at, size);
	return SUCCESS;
}

u32 Z_wasi_snapshot_preview1Z_environ_get(wasi *w, u32 list_at, u32 at) {
	instance *i = (instance *)w;
	for (char **e = environ; *e != NULL; e++) {
		uint32_t length = (uint32_t)strlen(*e) + 1;
		memcpy(bytes_at(i, at, length), *e, length);
		put_number(i, list_at, at);
		list_at += sizeof at;
		at += length;
	}
	return SUCCESS;
}

// The module writes only the last words of its runtime.
u32 Z_wasi_snapshot_preview1Z_fd_write(wasi *w, u32 file, u32 list_at, u32 count, u32 written_at) {
	instance *i = (instance *)w;
	uint32_t written = 0;
	if (file != 1 && file != 2) {
		return BAD_FILE;
	}
	for (uint32_t n = 0; n < count; n++) {
		uint32_t pair[2];
		memcpy(pair, bytes_at(i, list_at + n * sizeof pair, sizeof pair), sizeof pair);
		envoy_dynamic_module_callback_log(
			envoy_dynamic_module_type_log_level_Critical, (module_bytes){bytes_at(i, pair[0], pair[1]), pair[1]});
		written += pair[1];
	}
	put_number(i, written_at, written);
	return SUCCESS;
}
