// Requests: Envoy's callbacks for streams.
#include <string.h>

#include "host.h"

// Paused streams are found by context: ticks and answers select them.
static stream **list_of(instance *i, uint32_t context) {
	return &i->paused[context % (sizeof i->paused / sizeof i->paused[0])];
}

// find_paused returns a paused stream, NULL if there is none with that context. It needs the lock.
stream *find_paused(instance *i, uint32_t context) {
	stream *s = *list_of(i, context);
	while (s != NULL && s->context != context) {
		s = s->next;
	}
	return s;
}

// pause keeps a stream until its outcome. It needs the lock.
static void pause(instance *i, stream *s) {
	if (s->scheduler == NULL) {
		s->scheduler = envoy_dynamic_module_callback_http_filter_scheduler_new(s->envoy);
	}
	s->paused = true;
	stream **list = list_of(i, s->context);
	s->next = *list;
	*list = s;
}

// unpause removes a stream from the paused ones, if it is among them. It needs the lock.
static void unpause(instance *i, stream *s) {
	if (!s->paused) {
		return;
	}
	stream **at = list_of(i, s->context);
	while (*at != s) {
		at = &(*at)->next;
	}
	*at = s->next;
	s->paused = false;
}

// forget_paused lets paused streams that are not decided yet be decided again, because their instance
// is gone. It needs the lock.
void forget_paused(instance *i) {
	for (size_t n = 0; n < sizeof i->paused / sizeof i->paused[0]; n++) {
		for (stream *s = i->paused[n], *next; s != NULL; s = next) {
			next = s->next;
			s->paused = false;
			if (s->outcome.reply == NULL && !s->outcome.resume) { // It has not been decided.
				free_outcome(&s->outcome);
				s->outcome.again = true;
			}
			envoy_dynamic_module_callback_http_filter_scheduler_commit(s->scheduler, 0);
		}
		i->paused[n] = NULL;
	}
}

// holds reports whether a stream's context is in the module. It needs the lock.
static bool holds(const instance *i, const stream *s) { return i->alive && i->generation == s->generation; }

// select_stream begins a callback of a stream. It needs the lock.
static void select_stream(instance *i, stream *s) {
	i->root = find_root(i, s->plugin);
	i->running = i->selected = s;
}

// A request is a callback for a request's headers.
typedef struct request {
	uint32_t root, context;
	bool pauses;
} request;

static void call_request_headers(instance *i, void *argument) {
	request *r = argument;
	Z_weirZ_proxy_on_context_create(&i->module, r->context, r->root);
	r->pauses = Z_weirZ_proxy_on_request_headers(&i->module, r->context, 0, 0) != 0;
}

// decide decides a request once, and reports false if that could not be done. It needs the lock.
static bool decide(instance *i, stream *s) {
	root *r = start_instance(i) ? root_of(i, s->plugin) : NULL;
	if (r == NULL) {
		return false;
	}
	s->generation = i->generation;
	s->context = new_context(i);
	request q = {r->context, s->context, false};
	select_stream(i, s);
	if (!run_module(i, call_request_headers, &q)) {
		return false;
	}
	if (q.pauses && s->outcome.reply == NULL && !s->outcome.resume) {
		pause(i, s);
	}
	return true;
}

// begin decides a request and returns its outcome, or reports that the request waits. After a fault a
// new instance decides it; after a second fault the request passes: a third attempt would only take
// more time.
static bool begin(stream *s, outcome *o) {
	instance *i = s->instance;
	int64_t now = microseconds();
	atomic_store_explicit(&i->busy, now, memory_order_relaxed); // It need not be exact.
	lock_instance(i);
	select_stream(i, s); // Ticks may count in its request.
	flush_metrics(s);
	if (i->due <= now) {
		run_due_ticks(i, now);
	}
	for (int attempt = 0; attempt < 2 && !decide(i, s); attempt++) {
		free_outcome(&s->outcome);
	}
	bool waits = s->paused;
	*o = waits ? (outcome){0} : s->outcome;
	if (!waits) {
		s->outcome = (outcome){0};
	}
	unlock_instance(i);
	return waits;
}

// take_outcome returns a stream's outcome, and reports whether the stream waits for another one.
static bool take_outcome(void *envoy, stream *s, outcome *o) {
	instance *i = s->instance;
	lock_instance(i);
	s->envoy = envoy;
	*o = s->outcome;
	s->outcome = (outcome){0};
	if (o->reply != NULL || o->resume) {
		unpause(i, s);
	}
	bool waits = s->paused;
	unlock_instance(i);
	return waits;
}

EXPORT envoy_dynamic_module_type_on_http_filter_request_headers_status
envoy_dynamic_module_on_http_filter_request_headers(void *envoy, const void *module, bool end) {
	(void)end;
	stream *s = (stream *)module;
	s->envoy = envoy;
	s->instance = instance_of_thread();
	if (s->instance == NULL) {
		return envoy_dynamic_module_type_on_http_filter_request_headers_status_Continue;
	}
	outcome o;
	if (begin(s, &o)) {
		return envoy_dynamic_module_type_on_http_filter_request_headers_status_StopAllIterationAndWatermark;
	}
	return carry_out(s, &o) ? envoy_dynamic_module_type_on_http_filter_request_headers_status_StopIteration
				: envoy_dynamic_module_type_on_http_filter_request_headers_status_Continue;
}

// Envoy calls it for a paused stream that has an outcome.
EXPORT void envoy_dynamic_module_on_http_filter_scheduled(void *envoy, const void *module, uint64_t event) {
	(void)event;
	stream *s = (stream *)module;
	outcome o;
	bool waits = take_outcome(envoy, s, &o);
	if (s->ended || s->replied) {
		free_outcome(&o);
		return;
	}
	bool goes_on = o.resume;
	if (o.again) {
		free_outcome(&o);
		waits = begin(s, &o);
		goes_on = !waits;
	}
	if (!carry_out(s, &o) && goes_on && !waits) {
		envoy_dynamic_module_callback_http_filter_continue_decoding(envoy);
	}
}

static void call_response_headers(instance *i, void *argument) {
	Z_weirZ_proxy_on_response_headers(&i->module, ((stream *)argument)->context, 0, 0);
}

static void call_response_trailers(instance *i, void *argument) {
	Z_weirZ_proxy_on_response_trailers(&i->module, ((stream *)argument)->context, 0);
}

static void call_delete(instance *i, void *argument) {
	Z_weirZ_proxy_on_delete(&i->module, ((stream *)argument)->context);
}

// tell tells the module of an event of a stream that it holds.
static void tell(void *envoy, stream *s, void (*call)(instance *, void *)) {
	instance *i = s->instance;
	if (i == NULL || s->ended) {
		return;
	}
	lock_instance(i);
	s->envoy = envoy;
	if (holds(i, s)) {
		select_stream(i, s);
		run_module(i, call, s);
	}
	unlock_instance(i);
}

EXPORT envoy_dynamic_module_type_on_http_filter_response_headers_status
envoy_dynamic_module_on_http_filter_response_headers(void *envoy, const void *module, bool end) {
	(void)end;
	stream *s = (stream *)module;
	if (!s->replied) { // The filter's own reply has its headers.
		tell(envoy, s, call_response_headers);
	}
	return envoy_dynamic_module_type_on_http_filter_response_headers_status_Continue;
}

EXPORT envoy_dynamic_module_type_on_http_filter_response_trailers_status
envoy_dynamic_module_on_http_filter_response_trailers(void *envoy, const void *module) {
	tell(envoy, (stream *)module, call_response_trailers);
	return envoy_dynamic_module_type_on_http_filter_response_trailers_status_Continue;
}

// end tells the module that a stream is over. Envoy is NULL if the stream's attributes are gone.
static void end(void *envoy, stream *s) {
	tell(envoy, s, call_delete);
	if (s->instance == NULL || s->ended) {
		return;
	}
	lock_instance(s->instance);
	unpause(s->instance, s);
	free_outcome(&s->outcome);
	s->ended = true;
	unlock_instance(s->instance);
}

// Envoy calls it before it writes the access log, and while the stream's attributes exist.
EXPORT void envoy_dynamic_module_on_http_filter_stream_complete(void *envoy, const void *module) {
	end(envoy, (stream *)module);
}

// Streams of the thread that can be used again.
static _Thread_local stream *spare;

EXPORT const void *envoy_dynamic_module_on_http_filter_new(const void *config, void *envoy) {
	stream *s = spare;
	if (s != NULL) {
		spare = s->next;
		memset(s, 0, sizeof *s);
	} else if ((s = calloc(1, sizeof *s)) == NULL) {
		return NULL;
	}
	s->plugin = (plugin *)config;
	s->envoy = envoy;
	return s;
}

EXPORT void envoy_dynamic_module_on_http_filter_destroy(const void *module) {
	stream *s = (stream *)module;
	end(NULL, s);
	if (s->scheduler != NULL) {
		envoy_dynamic_module_callback_http_filter_scheduler_delete(s->scheduler);
	}
	s->next = spare;
	spare = s;
}

// Bodies and the request's trailers pass: nothing comes for a stream that is paused.

EXPORT envoy_dynamic_module_type_on_http_filter_request_body_status
envoy_dynamic_module_on_http_filter_request_body(void *envoy, const void *module, bool end) {
	(void)envoy, (void)module, (void)end;
	return envoy_dynamic_module_type_on_http_filter_request_body_status_Continue;
}

EXPORT envoy_dynamic_module_type_on_http_filter_request_trailers_status
envoy_dynamic_module_on_http_filter_request_trailers(void *envoy, const void *module) {
	(void)envoy, (void)module;
	return envoy_dynamic_module_type_on_http_filter_request_trailers_status_Continue;
}

EXPORT envoy_dynamic_module_type_on_http_filter_response_body_status
envoy_dynamic_module_on_http_filter_response_body(void *envoy, const void *module, bool end) {
	(void)envoy, (void)module, (void)end;
	return envoy_dynamic_module_type_on_http_filter_response_body_status_Continue;
}
