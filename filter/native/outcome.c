// The module's orders about streams: filter state, replies, resumptions. An order about the stream
// whose callback runs is carried out at the end of the callback. An order about another stream, from
// a tick or an answer, waits for that stream's own thread.
#include <stdio.h>
#include <string.h>

#include "host.h"

// is_running reports whether a stream's own callback runs. It needs the lock.
static bool is_running(const stream *s) { return s->instance->running == s; }

// wake lets a paused stream's thread carry out its outcome. It needs the lock.
static void wake(const stream *s) {
	if (!is_running(s)) {
		envoy_dynamic_module_callback_http_filter_scheduler_commit(s->scheduler, 0);
	}
}

static void set_state(const stream *s, text key, text value) {
	envoy_dynamic_module_callback_http_set_filter_state_bytes(
		s->envoy, (module_bytes){key.bytes, key.length}, (module_bytes){value.bytes, value.length});
}

// note_state sets a value of the filter state, now or when the stream's thread carries out its
// outcome. The texts stay the caller's. It needs the lock.
void note_state(stream *s, text key, text value) {
	if (is_running(s)) {
		set_state(s, key, value);
		return;
	}
	state *n = malloc(sizeof *n + key.length + value.length);
	if (n == NULL) {
		return;
	}
	char *bytes = (char *)(n + 1);
	memcpy(bytes, key.bytes, key.length);
	memcpy(bytes + key.length, value.bytes, value.length);
	n->key = (text){bytes, key.length};
	n->value = (text){bytes + key.length, value.length};
	n->next = s->outcome.states;
	s->outcome.states = n;
}

// note_reply orders a reply, which now belongs to the stream. It needs the lock.
void note_reply(stream *s, reply *r) {
	free(s->outcome.reply);
	s->outcome.reply = r;
	wake(s);
}

// note_resume orders that the request goes on. It needs the lock.
void note_resume(stream *s) {
	s->outcome.resume = true;
	wake(s);
}

// set_states sets values of the filter state, the last value first in the list.
static void set_states(const stream *s, const state *n) {
	if (n != NULL) {
		set_states(s, n->next);
		set_state(s, n->key, n->value);
	}
}

// percent_encode writes bytes as a gRPC message must be, like Envoy. To has room for three times as
// many bytes.
static size_t percent_encode(char *to, const char *bytes, size_t length) {
	size_t n = 0;
	for (size_t i = 0; i < length; i++) {
		unsigned char c = (unsigned char)bytes[i];
		if (c >= ' ' && c <= '~' && c != '%') {
			to[n++] = (char)c;
		} else {
			n += (size_t)snprintf(to + n, 4, "%%%02X", c);
		}
	}
	return n;
}

// is_head reports whether the request's method is HEAD.
static bool is_head(const stream *s) {
	envoy_bytes method = {NULL, 0};
	const module_bytes name = {":method", 7};
	return envoy_dynamic_module_callback_http_get_header(
			   s->envoy, envoy_dynamic_module_type_http_header_type_RequestHeader, name, &method, 0, NULL) &&
		method.length == 4 && memcmp(method.ptr, "HEAD", 4) == 0;
}

// send_grpc answers with headers alone, as Envoy's own gRPC replies: Envoy's function for replies of
// modules would write the gRPC status 0, which says that the call has succeeded.
static void send_grpc(const stream *s, const reply *r) {
	char status[12], *message = malloc(r->body.length * 3 + 4);
	size_t digits = (size_t)snprintf(status, sizeof status, "%u", r->status);
	bool has_message = message != NULL && !is_head(s); // Envoy's replies to HEAD have none either.
	size_t length = has_message ? percent_encode(message, r->body.ptr, r->body.length) : 0;
	module_header *lines = r->headers - GRPC_LINES;
	lines[0] = (module_header){":status", 7, "200", 3};
	lines[1] = (module_header){"content-type", 12, "application/grpc", 16};
	lines[2] = (module_header){"grpc-status", 11, status, digits};
	lines[3] = (module_header){"grpc-message", 12, message, length};
	size_t count = GRPC_LINES + r->header_count;
	if (length == 0) {
		lines[3] = lines[2];
		lines[2] = lines[1];
		lines[1] = lines[0];
		lines++;
		count--;
	}
	envoy_dynamic_module_callback_http_send_response_headers(s->envoy, lines, count, true);
	free(message);
}

static void send(const stream *s, const reply *r) {
	if (r->grpc) {
		send_grpc(s, r);
	} else {
		envoy_dynamic_module_callback_http_send_response(
			s->envoy, r->status, r->headers, r->header_count, r->body, r->details);
	}
}

// carry_out carries out an outcome on the stream's own thread, and reports whether the stream has been
// answered. The lock must be free: Envoy calls back.
bool carry_out(stream *s, outcome *o) {
	set_states(s, o->states);
	bool replies = o->reply != NULL && !s->replied;
	if (replies) {
		s->replied = true;
		send(s, o->reply);
	}
	free_outcome(o);
	return replies;
}

// free_outcome forgets an outcome.
void free_outcome(outcome *o) {
	for (state *n = o->states, *next; n != NULL; n = next) {
		next = n->next;
		free(n);
	}
	free(o->reply);
	*o = (outcome){0};
}
