// Lets threads call clusters by the native host while the main thread sends their calls, answers some,
// fails some and ends others. It is compiled with the sanitizer of threads, which ends it at the first
// access that races. Each call must have one answer, in the instance that made it, and reach Envoy
// with the bytes that the module gave. Envoy's functions and the module are replaced.
//
//   calls SEED CALLS
#include <sched.h>
#include <stdio.h>
#include <string.h>

#include "headers.h"

enum { THREADS = 4, UNDER_WAY = 16, SIZE = 65536, NUMBER_AT = 0, CLUSTER_AT = 8, BLOCK_AT = 32, BODY_AT = 64 };

// The one header of a call is "a: bc", in the encoding of headers.h.
static const char block[] = "\1\0\0\0\1\0\0\0\2\0\0\0a\0bc";

// A caller is a thread with an instance. Of its calls, by their numbers, it notes the answers.
typedef struct caller {
	instance instance;
	root root;
	uint32_t calls, answered; // answered: the lock of the instance protects it
	uint8_t *answers;
	pthread_t thread;
} caller;

static caller callers[THREADS];
static plugin loaded[2]; // The first is the callers'; it may end.
static _Atomic int calling;
static uint64_t seed;

pthread_mutex_t plugins_lock = PTHREAD_MUTEX_INITIALIZER;
plugin *plugins = loaded;

static void fail(const char *what) {
	fprintf(stderr, "%s\n", what);
	exit(1);
}

// The host's other parts.
void wasm_rt_trap(wasm_rt_trap_t trap) {
	(void)trap;
	fail("a fault of the module");
	abort();
}
void lock_instance(instance *i) { pthread_mutex_lock(&i->lock); }
void unlock_instance(instance *i) { pthread_mutex_unlock(&i->lock); }
root *find_context(instance *i, uint32_t context) { return i->roots->context == context ? i->roots : NULL; }
bool run_module(instance *i, void (*call)(instance *, void *), void *argument) {
	call(i, argument);
	return true;
}

// The main thread looks for calls all the time.
void call_main_thread(void) {}

// The module.
uint32_t Z_weirZ_malloc(Z_weir_instance_t *m, uint32_t length) {
	(void)m, (void)length;
	return 0;
}
void Z_weirZ_proxy_on_http_call_response(
	Z_weir_instance_t *m, u32 context, u32 number, u32 headers, u32 body_length, u32 trailers) {
	(void)context, (void)headers, (void)body_length, (void)trailers;
	caller *c = (caller *)m;
	if (number == 0 || number > c->calls) {
		fail("an answer to no call");
	}
	c->answers[number]++;
	c->answered++;
}

// Functions that headers.c calls for requests.
stream *find_paused(instance *i, uint32_t context) {
	(void)i, (void)context;
	return NULL;
}
void note_resume(stream *s) { (void)s; }
void note_reply(stream *s, reply *r) { (void)s, free(r); }
size_t envoy_dynamic_module_callback_http_get_headers_size(
	void *s, envoy_dynamic_module_type_http_header_type of) {
	(void)s, (void)of;
	return 0;
}
bool envoy_dynamic_module_callback_http_get_headers(
	void *s, envoy_dynamic_module_type_http_header_type of, envoy_header *to) {
	(void)s, (void)of, (void)to;
	return false;
}
bool envoy_dynamic_module_callback_http_get_header(void *s, envoy_dynamic_module_type_http_header_type of,
	module_bytes name, envoy_bytes *value, size_t index, size_t *count) {
	(void)s, (void)of, (void)name, (void)value, (void)index, (void)count;
	return false;
}
bool envoy_dynamic_module_callback_http_set_header(
	void *s, envoy_dynamic_module_type_http_header_type of, module_bytes name, module_bytes value) {
	(void)s, (void)of, (void)name, (void)value;
	return false;
}

// Envoy: the numbers of calls under way.
static struct { const plugin *by; uint64_t id; } sent[THREADS * (UNDER_WAY + 1)];
static size_t sent_count;

envoy_dynamic_module_type_http_callout_init_result
envoy_dynamic_module_callback_http_filter_config_http_callout(void *config, uint64_t *id,
	module_bytes cluster, module_header *headers, size_t count, module_bytes body, uint64_t timeout) {
	static uint64_t last;
	if (cluster.length != 4 || memcmp(cluster.ptr, "weir", 4) != 0 || count != 1 || timeout != 50 ||
		headers->key_length != 1 || *headers->key_ptr != 'a' || headers->value_length != 2 ||
		memcmp(headers->value_ptr, "bc", 2) != 0) {
		fail("Envoy gets another call");
	}
	for (size_t n = 1; n < body.length; n++) {
		if (body.ptr[n] != body.ptr[0]) {
			fail("Envoy gets another body");
		}
	}
	if (++last % 7 == 0) {
		return envoy_dynamic_module_type_http_callout_init_result_ClusterNotFound;
	}
	*id = last;
	sent[sent_count].by = config;
	sent[sent_count++].id = *id;
	return envoy_dynamic_module_type_http_callout_init_result_Success;
}

EXPORT void envoy_dynamic_module_on_http_filter_config_http_callout_done(void *, const void *, uint64_t,
	envoy_dynamic_module_type_http_callout_result, envoy_header *, size_t, envoy_bytes *, size_t);

// await_answers waits until few calls of a thread are under way, and takes the lock of its instance.
static void await_answers(caller *c, uint32_t made) {
	lock_instance(&c->instance);
	while (made - c->answered > UNDER_WAY) {
		unlock_instance(&c->instance);
		sched_yield();
		lock_instance(&c->instance);
	}
}

// call makes a thread's calls. Their bodies have several lengths, so that memory is used again.
static void *call(void *argument) {
	caller *c = argument;
	char *memory = (char *)c->instance.module.w2c_memory.data;
	memcpy(memory + CLUSTER_AT, "weir", 4);
	memcpy(memory + BLOCK_AT, block, sizeof block);
	for (uint32_t n = 1; n <= c->calls; n++) {
		await_answers(c, n - 1);
		c->instance.root = c->instance.roots;
		uint32_t length = n * 37 % 500;
		memset(memory + BODY_AT, (int)(n % 256), length);
		if (Z_envZ_proxy_http_call((struct Z_env_instance_t *)&c->instance, CLUSTER_AT, 4, BLOCK_AT, sizeof block,
				BODY_AT, length, 0, 0, 50, NUMBER_AT) != OK) {
			fail("a call is refused");
		}
		uint32_t number;
		memcpy(&number, memory + NUMBER_AT, sizeof number);
		if (number != n) {
			fail("a call has another number");
		}
		unlock_instance(&c->instance);
	}
	calling--;
	return NULL;
}

// answer_one answers a call under way, drawn at random.
static void answer_one(void) {
	seed = seed * 6364136223846793005u + 1442695040888963407u;
	size_t n = (size_t)(seed >> 33) % sent_count;
	const plugin *by = sent[n].by;
	uint64_t id = sent[n].id;
	sent[n] = sent[--sent_count];
	envoy_dynamic_module_on_http_filter_config_http_callout_done(NULL, by, id,
		seed >> 62 ? envoy_dynamic_module_type_http_callout_result_Success
				   : envoy_dynamic_module_type_http_callout_result_Reset,
		NULL, 0, NULL, 0);
}

// end_plugin ends the callers' plugin in the middle of their calls, as plugins.c does. Envoy drops
// the answers.
static void end_plugin(void) {
	size_t left = 0;
	for (size_t n = 0; n < sent_count; n++) {
		if (sent[n].by != &loaded[0]) {
			sent[left++] = sent[n];
		}
	}
	sent_count = left;
	pthread_mutex_lock(&plugins_lock);
	plugins = &loaded[1];
	pthread_mutex_unlock(&plugins_lock);
	end_calls_of(&loaded[0]);
}

int main(int count, char **arguments) {
	seed = strtoull(count > 1 ? arguments[1] : "1", NULL, 10);
	uint32_t calls = (uint32_t)strtoul(count > 2 ? arguments[2] : "1000", NULL, 10);
	loaded[0].next = &loaded[1];
	loaded[0].envoy = &loaded[0];
	loaded[1].envoy = &loaded[1];
	calling = THREADS;
	for (int n = 0; n < THREADS; n++) {
		caller *c = &callers[n];
		pthread_mutex_init(&c->instance.lock, NULL);
		c->instance.alive = true;
		c->instance.module.w2c_memory.data = malloc(SIZE);
		c->instance.module.w2c_memory.size = SIZE;
		c->root = (root){.plugin = &loaded[0], .context = 1};
		c->instance.roots = &c->root;
		c->calls = calls;
		c->answers = calloc(calls + 1, 1);
	}
	for (int n = 0; n < THREADS; n++) {
		if (pthread_create(&callers[n].thread, NULL, call, &callers[n]) != 0) {
			fail("cannot start a thread");
		}
	}
	unsigned long rounds = 0;
	while (calling > 0) {
		send_calls();
		if (sent_count > 0) {
			answer_one();
		}
		if (++rounds == calls) {
			end_plugin();
		}
	}
	for (int n = 0; n < THREADS; n++) {
		pthread_join(callers[n].thread, NULL);
	}
	send_calls();
	while (sent_count > 0) {
		answer_one();
	}
	for (int n = 0; n < THREADS; n++) {
		for (uint32_t number = 1; number <= calls; number++) {
			if (callers[n].answers[number] != 1) {
				fail("a call has no answer, or two");
			}
		}
	}
	printf("%lu rounds\n", rounds);
	return 0;
}
