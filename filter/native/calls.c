// Calls to clusters. They must not end with the stream that needs them, since answers are for several
// streams. Only calls of a configuration last so long, and Envoy makes them on the main thread.
#include <string.h>

#include "headers.h"

// A call is a call without an answer yet. Its bytes are in its own block of memory.
typedef struct call {
	struct call *next;
	instance *instance;
	uint32_t generation, context, number; // who waits for the answer
	const plugin *plugin;                 // who calls; then, by whose configuration Envoy calls
	uint64_t id;                          // Envoy's number
	uint64_t timeout;                     // in milliseconds
	module_bytes cluster, body;
	module_header *headers;
	size_t header_count;
} call;

// Calls that the main thread is to send, the last first.
static _Atomic(call *) outbox;
// Calls that have been sent, by Envoy's number. The lock of plugins protects them.
static call *sent[256];

static call **sent_list(uint64_t id) { return &sent[id % (sizeof sent / sizeof sent[0])]; }

// copy_call copies a call out of the module's memory.
static call *copy_call(
	const char *block, uint32_t count, uint32_t block_length, module_bytes cluster, module_bytes body) {
	size_t lines = (size_t)count * sizeof(module_header);
	call *c = calloc(1, sizeof *c + lines + block_length + cluster.length + body.length);
	if (c == NULL) {
		return NULL;
	}
	c->headers = (module_header *)(c + 1);
	c->header_count = count;
	char *bytes = (char *)(c + 1) + lines;
	list_headers(move_in(&bytes, block, block_length).ptr, count, c->headers);
	c->cluster = move_in(&bytes, cluster.ptr, cluster.length);
	c->body = move_in(&bytes, body.ptr, body.length);
	return c;
}

u32 Z_envZ_proxy_http_call(struct Z_env_instance_t *env, u32 cluster_at, u32 cluster_length, u32 block_at,
	u32 block_length, u32 body_at, u32 body_length, u32 trailers_at, u32 trailers_length, u32 timeout,
	u32 number_at) {
	(void)trailers_at, (void)trailers_length; // The module sends none.
	instance *i = (instance *)env;
	const char *block = bytes_at(i, block_at, block_length);
	uint32_t count = count_headers(block, block_length);
	if (i->root == NULL) {
		return BAD_ARGUMENT;
	}
	// The number is written last: its place may be within the headers, whose lengths have been checked.
	char *number = bytes_at(i, number_at, sizeof i->calls);
	call *c = copy_call(block, count, block_length,
		(module_bytes){bytes_at(i, cluster_at, cluster_length), cluster_length},
		(module_bytes){bytes_at(i, body_at, body_length), body_length});
	if (c == NULL) {
		return INTERNAL_FAILURE;
	}
	c->instance = i;
	c->generation = i->generation;
	c->context = i->root->context;
	c->plugin = i->root->plugin;
	c->number = ++i->calls;
	memcpy(number, &c->number, sizeof c->number);
	c->timeout = timeout;
	call *before = outbox;
	do {
		c->next = before;
	} while (!atomic_compare_exchange_weak(&outbox, &before, c));
	// From here on the call is the main thread's, which may have freed it already.
	if (before == NULL) { // For the calls before, the main thread has been called.
		call_main_thread();
	}
	return OK;
}

static void call_answer(instance *i, void *argument) {
	const call *c = argument;
	const answer *a = i->answer;
	Z_weirZ_proxy_on_http_call_response(
		&i->module, c->context, c->number, (uint32_t)a->header_count, (uint32_t)a->body_length, 0);
}

// deliver gives the module the answer to a call, NULL if there is none, and frees the call. An answer
// for a plugin that has ended is dropped.
static void deliver(call *c, const answer *a) {
	static const answer none;
	instance *i = c->instance;
	lock_instance(i);
	root *r = i->alive && i->generation == c->generation ? find_context(i, c->context) : NULL;
	if (r != NULL) {
		i->root = r;
		i->answer = a != NULL ? a : &none;
		run_module(i, call_answer, c);
	}
	unlock_instance(i);
	free(c);
}

// sender_of returns the plugin by whose configuration a call is made: the caller's. If that has ended,
// the call usually gives back tokens, and the newest plugin makes it. It needs the lock of plugins.
static const plugin *sender_of(const call *c) {
	const plugin *p = plugins;
	while (p != NULL && p != c->plugin) {
		p = p->next;
	}
	return p != NULL ? p : plugins;
}

// send_call sends a call, and reports false if Envoy does not take it.
static bool send_call(call *c) {
	pthread_mutex_lock(&plugins_lock);
	c->plugin = sender_of(c);
	bool taken = c->plugin != NULL &&
		envoy_dynamic_module_callback_http_filter_config_http_callout(c->plugin->envoy, &c->id, c->cluster,
			c->headers, c->header_count, c->body, c->timeout) ==
			envoy_dynamic_module_type_http_callout_init_result_Success;
	if (taken) {
		call **list = sent_list(c->id);
		c->next = *list;
		*list = c;
	}
	pthread_mutex_unlock(&plugins_lock);
	return taken;
}

// send_calls sends the calls of all instances in their order, on the main thread.
void send_calls(void) {
	call *c = atomic_exchange(&outbox, NULL), *first = NULL;
	while (c != NULL) {
		call *next = c->next;
		c->next = first;
		first = c;
		c = next;
	}
	while (first != NULL) {
		c = first;
		first = c->next;
		if (!send_call(c)) {
			deliver(c, NULL);
		}
	}
}

// take_sent removes a call that has been sent, NULL if there is none.
static call *take_sent(const plugin *p, uint64_t id) {
	pthread_mutex_lock(&plugins_lock);
	call **at = sent_list(id);
	while (*at != NULL && ((*at)->id != id || (*at)->plugin != p)) {
		at = &(*at)->next;
	}
	call *c = *at;
	if (c != NULL) {
		*at = c->next;
	}
	pthread_mutex_unlock(&plugins_lock);
	return c;
}

// end_calls_of ends the calls that a plugin's configuration has made: Envoy drops their answers.
void end_calls_of(const plugin *p) {
	call *ended = NULL;
	pthread_mutex_lock(&plugins_lock);
	for (size_t n = 0; n < sizeof sent / sizeof sent[0]; n++) {
		for (call **at = &sent[n], *c; (c = *at) != NULL;) {
			if (c->plugin != p) {
				at = &c->next;
				continue;
			}
			*at = c->next;
			c->next = ended;
			ended = c;
		}
	}
	pthread_mutex_unlock(&plugins_lock);
	for (call *c = ended, *next; c != NULL; c = next) {
		next = c->next;
		deliver(c, NULL);
	}
}

EXPORT void envoy_dynamic_module_on_http_filter_config_http_callout_done(void *envoy, const void *module,
	uint64_t id, envoy_dynamic_module_type_http_callout_result result, envoy_header *headers, size_t count,
	envoy_bytes *chunks, size_t chunk_count) {
	(void)envoy;
	call *c = take_sent(module, id);
	if (c == NULL) {
		return;
	}
	answer a = {headers, count, chunks, chunk_count, 0};
	for (size_t n = 0; n < chunk_count; n++) {
		a.body_length += chunks[n].length;
	}
	deliver(c, result == envoy_dynamic_module_type_http_callout_result_Success ? &a : NULL);
	send_calls(); // The module often answers an answer with a call.
}
