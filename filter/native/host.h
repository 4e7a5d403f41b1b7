// The native host: it gives build/weir.wasm, translated to C by wasm2c, the host calls of the
// proxy-wasm ABI 0.2.0 by Envoy's interface for dynamic modules.
//
// Threads: each thread of Envoy that runs the filter has an instance of the module with memory of its
// own. A lock for each instance lets the main thread run an idle worker's ticks and deliver answers to
// its calls. A function that needs the lock says so.
//
// Order: the module calls only the functions of this host, and no call to Envoy that the host makes
// while the module runs calls back. Replies and resumptions wait until the module has returned and the
// lock is free, see outcome. So the module is never entered twice, and a fault ends one callback of the
// module and no other code.
#ifndef WEIR_HOST_H
#define WEIR_HOST_H

#include <pthread.h>
#include <setjmp.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "envoy.h"
#include "weir.h"

// Statuses of the proxy-wasm ABI.
enum { OK = 0, NOT_FOUND = 1, BAD_ARGUMENT = 2, CAS_MISMATCH = 8, INTERNAL_FAILURE = 10 };

// An address in the module is a number of 32 bits plus an offset of 32 bits, and an access has a few
// bytes. All of them are reserved for its memory, and no byte beyond the memory's end can be accessed.
// So its code checks no bounds: see fault.c.
#define RESERVED ((8ull << 30) + (1 << 16))

// NEVER is an instant that does not come.
#define NEVER INT64_MAX

// A text of known length, which its owner frees.
typedef struct text {
	char *bytes;
	size_t length;
} text;

// A plugin is one loaded configuration of the filter.
typedef struct plugin {
	struct plugin *next; // the next older plugin, protected by plugins_lock
	text name;           // Envoy's filter_name
	text configuration;
	void *envoy;     // Envoy's configuration
	void *scheduler; // runs events on the main thread
	size_t *metrics; // Envoy's numbers of the families of metrics, see metrics.c
	size_t metric_count;
	bool loading; // Envoy loads it: metrics can be defined
} plugin;

// A root is a plugin in an instance.
typedef struct root {
	struct root *next;
	plugin *plugin;
	uint32_t context; // the module's number of it
	bool started;     // the module has taken its configuration
	int64_t period;   // of ticks, in microseconds; 0 without ticks
	int64_t due;      // the next tick, NEVER without ticks
} root;

// An answer to a call; both lists are Envoy's, and valid during the callback.
typedef struct answer {
	const envoy_header *headers;
	size_t header_count;
	const envoy_bytes *chunks;
	size_t chunk_count;
	size_t body_length; // of all chunks
} answer;

// An instance is a running module. There is one for each thread of Envoy, for ever.
typedef struct instance {
	Z_weir_instance_t module; // first, because the module's host calls receive a pointer to it
	struct instance *next;    // the next older instance; never changes
	pthread_mutex_t lock;     // protects all fields but next, taken, due and busy
	bool alive;               // false before the first start and after a fault
	bool rests;               // the last start has not ended well
	uint32_t generation;      // the number of starts
	uint32_t contexts;        // the last number of a context
	uint32_t calls;           // the last number of a call
	root *roots;
	struct stream *paused[256]; // paused streams by context

	// The current callback.
	jmp_buf back; // where a fault goes
	root *root;
	struct stream *running;  // the stream whose callback runs, on its own thread
	struct stream *selected; // the stream that host calls are about
	const answer *answer;    // the answer that the module is told of

	_Atomic bool taken;   // a thread uses it
	_Atomic int64_t due;  // the earliest tick, or when a dead instance starts anew
	_Atomic int64_t busy; // the last request
} instance;

// The lines before the headers of a reply that send_grpc needs.
enum { GRPC_LINES = 4 };

// A reply is a local answer to a request, in one block of memory, with room for GRPC_LINES headers
// before its own.
typedef struct reply {
	uint32_t status;
	bool grpc;
	size_t header_count;
	module_header *headers;
	module_bytes body, details;
} reply;

// A state is a value for the filter state.
typedef struct state {
	struct state *next;
	text key, value;
} state;

// An outcome is the module's orders about a stream, which its own thread carries out.
typedef struct outcome {
	state *states; // the last first; only from callbacks of other streams, ticks and answers
	reply *reply;
	bool resume;
	bool again; // the instance that held the stream is gone: decide the request again
} outcome;

// A stream is one request.
typedef struct stream {
	struct stream *next; // in its instance's list of paused streams, or among spare streams
	plugin *plugin;
	void *envoy;
	instance *instance; // NULL before the request's headers
	uint32_t generation, context;
	void *scheduler; // runs events on the stream's thread; only of a stream that has paused
	bool paused, replied, ended;
	outcome outcome;
} stream;

// fault.c: faults of the module.
void install_fault_handlers(void);
bool run_module(instance *i, void (*call)(instance *, void *), void *argument);

// instance.c: instances and their roots.
extern _Atomic(instance *) instances;
instance *instance_of_thread(void);
void add_instances(uint32_t count);
void lock_instance(instance *i);
void unlock_instance(instance *i);
bool start_instance(instance *i);
void drop_instance(instance *i);
root *root_of(instance *i, plugin *p);
root *find_root(instance *i, const plugin *p);
bool start_root(instance *i, root *r);
void remove_root(instance *i, root *r);
root *find_context(instance *i, uint32_t context);
uint32_t new_context(instance *i);

// memory.c: the memory of instances.
instance *reserve_instance(void);
char *bytes_at(instance *i, uint32_t at, uint32_t length);
void put_number(instance *i, uint32_t at, uint32_t value);
char *new_bytes(instance *i, size_t length, uint32_t at, uint32_t length_at);
uint32_t return_bytes(instance *i, const void *bytes, size_t length, uint32_t at, uint32_t length_at);

// plugins.c: the plugins.
extern pthread_mutex_t plugins_lock;
extern plugin *plugins;
void call_main_thread(void);

// streams.c: requests.
stream *find_paused(instance *i, uint32_t context);
void forget_paused(instance *i);

// outcome.c: the module's orders about a stream.
void note_state(stream *s, text key, text value);
void note_reply(stream *s, reply *r);
void note_resume(stream *s);
bool carry_out(stream *s, outcome *o);
void free_outcome(outcome *o);

// ticks.c: ticks.
int64_t microseconds(void);
void set_due(instance *i, int64_t due);
void note_due(instance *i);
void run_due_ticks(instance *i, int64_t now);
void run_all_due_ticks(void);
void start_ticker(void);

// calls.c: calls to clusters.
void send_calls(void);
void end_calls_of(const plugin *p);

// metrics.c: metrics.
void define_known_metrics(plugin *p);
void flush_metrics(const stream *s);
void count_fault(void);

// shared_data.c: the data that all instances share.
bool init_shared_data(void);

// provoke.c: faults on demand, for tests.
#ifdef PROVOKE_FAULTS
void provoke(instance *i, const envoy_header *headers, size_t count);
#else
static inline void provoke(instance *i, const envoy_header *headers, size_t count) {
	(void)i, (void)headers, (void)count;
}
#endif

// system.c: the log.
void write_log(envoy_dynamic_module_type_log_level level, const char *format, ...)
	__attribute__((format(printf, 2, 3)));

#endif
