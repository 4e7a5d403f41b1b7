// The data that all instances of the process share: buckets, leases, configurations, elections. It
// has the meaning of Envoy's shared data for Wasm.
#include <stdlib.h>
#include <string.h>

#include "host.h"

// An entry is a value under a key. The key's bytes follow it.
typedef struct entry {
	struct entry *next;
	uint32_t hash;
	uint32_t cas; // changes with each write; never 0 then
	uint32_t key_length, length, capacity;
	char *value;
	char key[];
} entry;

// Keys are spread over parts, each with a lock and a table that grows.
enum { PART_BITS = 6, PARTS = 1 << PART_BITS, FIRST_LISTS = 16 };
typedef struct part {
	pthread_mutex_t lock;
	entry **lists;
	uint32_t lists_count, entries; // lists_count is a power of two
} part;

// The parts belong to the process, and outlive this build of the host: a later build finds them under
// the same key. Who changes the layout of an entry or of a part must change the key.
static const module_bytes parts_key = {"weir.shared_data.1", 18};
static part *parts;

// init_shared_data finds the parts of an earlier build in this process, or makes them. It reports false
// without memory.
bool init_shared_data(void) {
	void *found = NULL;
	if (envoy_dynamic_module_callback_get_shared_data(parts_key, &found) && found != NULL) {
		parts = found;
		return true;
	}
	parts = calloc(PARTS, sizeof *parts);
	for (size_t i = 0; parts != NULL && i < PARTS; i++) {
		pthread_mutex_init(&parts[i].lock, NULL);
		parts[i].lists_count = FIRST_LISTS;
		parts[i].lists = calloc(FIRST_LISTS, sizeof *parts[i].lists);
		if (parts[i].lists == NULL) {
			return false;
		}
	}
	return parts != NULL && envoy_dynamic_module_callback_register_shared_data(parts_key, parts);
}

// hash_key is FNV-1a, mixed once more. The module hashes values of clients with a secret before it makes
// keys, so that nobody can aim at one list.
static uint32_t hash_key(const char *key, uint32_t length) {
	uint32_t h = 2166136261u;
	for (uint32_t i = 0; i < length; i++) {
		h = (h ^ (unsigned char)key[i]) * 16777619u;
	}
	return h ^ h >> 15;
}

static part *part_of(uint32_t hash) { return &parts[hash & (PARTS - 1)]; }

// place_of returns the place of a key: its entry, or the end of its list. It needs the part's lock.
static entry **place_of(const part *p, uint32_t hash, const char *key, uint32_t length) {
	entry **at = &p->lists[hash >> PART_BITS & (p->lists_count - 1)];
	while (*at != NULL &&
		((*at)->hash != hash || (*at)->key_length != length || memcmp((*at)->key, key, length) != 0)) {
		at = &(*at)->next;
	}
	return at;
}

// grow doubles a part's table when it has an entry for each list. It needs the part's lock.
static void grow(part *p) {
	if (p->entries < p->lists_count || p->lists_count > 1u << 24) {
		return;
	}
	uint32_t count = p->lists_count * 2;
	entry **lists = calloc(count, sizeof *lists);
	if (lists == NULL) {
		return; // Longer lists are slower, and right.
	}
	for (uint32_t i = 0; i < p->lists_count; i++) {
		for (entry *e = p->lists[i], *next; e != NULL; e = next) {
			next = e->next;
			entry **list = &lists[e->hash >> PART_BITS & (count - 1)];
			e->next = *list;
			*list = e;
		}
	}
	free(p->lists);
	p->lists = lists;
	p->lists_count = count;
}

// new_entry adds an entry at its place, NULL without memory. It needs the part's lock.
static entry *new_entry(part *p, entry **at, uint32_t hash, const char *key, uint32_t length) {
	entry *e = calloc(1, sizeof *e + length);
	if (e == NULL) {
		return NULL;
	}
	e->hash = hash;
	e->key_length = length;
	memcpy(e->key, key, length);
	*at = e;
	p->entries++;
	grow(p);
	return e;
}

// write_value replaces an entry's value, and reports false without memory. It needs the part's lock.
static bool write_value(entry *e, const char *value, uint32_t length) {
	if (e->capacity < length) {
		char *bytes = realloc(e->value, length);
		if (bytes == NULL) {
			return false;
		}
		e->value = bytes;
		e->capacity = length;
	}
	if (length > 0) {
		memcpy(e->value, value, length);
	}
	e->length = length;
	e->cas = e->cas + 1 == 0 ? 1 : e->cas + 1;
	return true;
}

// copied holds a value between its entry and the module's memory: the module may fault when it makes
// room for the value, and a fault must not happen under a part's lock.
static _Thread_local text copied;

// copy_value copies an entry's value, and reports false without memory. It needs the part's lock.
static bool copy_value(const entry *e) {
	if (copied.length < e->length) {
		char *bytes = realloc(copied.bytes, e->length);
		if (bytes == NULL) {
			return false;
		}
		copied = (text){bytes, e->length};
	}
	if (e->length > 0) {
		memcpy(copied.bytes, e->value, e->length);
	}
	return true;
}

u32 Z_envZ_proxy_get_shared_data(
	struct Z_env_instance_t *env, u32 key_at, u32 key_length, u32 value_at, u32 length_at, u32 cas_at) {
	instance *i = (instance *)env;
	const char *key = bytes_at(i, key_at, key_length);
	uint32_t hash = hash_key(key, key_length), cas = 0, length = 0;
	part *p = part_of(hash);
	pthread_mutex_lock(&p->lock);
	const entry *e = *place_of(p, hash, key, key_length);
	bool read = e != NULL && copy_value(e);
	if (read) {
		cas = e->cas;
		length = e->length;
	}
	pthread_mutex_unlock(&p->lock);
	if (!read) {
		return e == NULL ? NOT_FOUND : INTERNAL_FAILURE;
	}
	put_number(i, cas_at, cas);
	return return_bytes(i, copied.bytes, length, value_at, length_at);
}

// A key that does not exist is written under any cas, as Envoy does it; the module relies on it.
u32 Z_envZ_proxy_set_shared_data(
	struct Z_env_instance_t *env, u32 key_at, u32 key_length, u32 value_at, u32 length, u32 cas) {
	instance *i = (instance *)env;
	const char *key = bytes_at(i, key_at, key_length), *value = bytes_at(i, value_at, length);
	uint32_t hash = hash_key(key, key_length), status = OK;
	part *p = part_of(hash);
	pthread_mutex_lock(&p->lock);
	entry **at = place_of(p, hash, key, key_length), *e = *at;
	if (e != NULL && cas != 0 && cas != e->cas) {
		status = CAS_MISMATCH;
	} else {
		if (e == NULL) {
			e = new_entry(p, at, hash, key, key_length);
		}
		if (e == NULL || !write_value(e, value, length)) {
			status = INTERNAL_FAILURE;
		}
	}
	pthread_mutex_unlock(&p->lock);
	return status;
}
