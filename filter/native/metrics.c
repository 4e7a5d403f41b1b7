// Metrics. Envoy lets a module define metrics only while it loads a configuration, and numbers them for
// each configuration anew. The module defines a metric when it first needs it. So the host knows the
// names, defines all of them for each configuration, and turns the names of a policy's metrics, which
// come later, into labels.
#include <stdio.h>
#include <string.h>

#include "host.h"

// Kinds of metrics in the proxy-wasm ABI.
typedef enum kind { COUNTER = 0, GAUGE = 1, HISTOGRAM = 2 } kind;

enum { MOST_LABELS = 2 };

// A family is a name that Envoy knows, and the labels of its metrics.
typedef struct family {
	kind kind;
	const char *name;
	size_t label_count;
	const char *labels[MOST_LABELS];
	// The module's name of such a metric is before + the first label + between + the second one + after.
	const char *before, *between, *after;
} family;

#define POLICY "weir.policy."

// The families that the module defines later than in its start: metrics of policies, and the gauges
// that the leader among the instances sets.
static const family late[] = {
	{COUNTER, "weir.decisions", 2, {"weir_policy", "weir_outcome"}, POLICY, ".outcome.", ".decisions"},
	{GAUGE, "weir.in_flight.requests", 1, {"weir_policy"}, POLICY, "", ".in_flight.requests"},
	{GAUGE, "weir.in_flight.limit", 1, {"weir_policy"}, POLICY, "", ".in_flight.limit"},
	{HISTOGRAM, "weir.in_flight.peak_percent", 1, {"weir_policy"}, POLICY, "", ".in_flight.peak_percent"},
	{COUNTER, "weir.in_flight.counted_out", 1, {"weir_policy"}, POLICY, "", ".in_flight.counted_out"},
	{GAUGE, "weir.adaptive.limit", 1, {"weir_policy"}, POLICY, "", ".adaptive.limit"},
	{COUNTER, "weir.shed.requests", 2, {"weir_policy", "weir_class"}, POLICY, ".class.", ".shed.requests"},
	{.kind = GAUGE, .name = "weir.ladder.step"},
	{.kind = GAUGE, .name = "weir.snapshot.age_seconds"},
	{.kind = GAUGE, .name = "weir.enforcement.orders"},
	{.kind = GAUGE, .name = "weir.enforcement.bans"},
	{.kind = GAUGE, .name = "weir.nodes.sharing"},
	{.kind = COUNTER, .name = "weir.faults"},
};

enum { LATE = sizeof late / sizeof late[0], FAULTS = LATE - 1 };

// A metric is a name that an instance has defined. The module's number of it is its place.
typedef struct metric {
	size_t family;
	char *name; // as the module writes it
	size_t length;
	module_bytes labels[MOST_LABELS];
	// Changes that Envoy could not be told yet. Before Envoy 1.39 it takes changes in requests only.
	int64_t added;
	uint64_t set, recorded[16];
	bool is_set;
	size_t recorded_count;
} metric;

// The lock protects all of them.
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static family *families; // first those of late
static size_t family_count;
static metric *metrics;
static size_t metric_count;
static _Atomic bool waiting; // a metric has changes that Envoy could not be told yet
static _Atomic uint64_t faults;

// Envoy's functions for metrics, in a request and outside of one. The latter are NULL before 1.39.
typedef envoy_dynamic_module_type_metrics_result (*change)(
	void *of, size_t id, module_bytes *labels, size_t count, uint64_t value);
typedef enum how { ADD_TO_COUNTER, ADD_TO_GAUGE, TAKE_FROM_GAUGE, SET_GAUGE, RECORD } how;
static const change in_request[] = {
	[ADD_TO_COUNTER] = envoy_dynamic_module_callback_http_filter_increment_counter,
	[ADD_TO_GAUGE] = envoy_dynamic_module_callback_http_filter_increment_gauge,
	[TAKE_FROM_GAUGE] = envoy_dynamic_module_callback_http_filter_decrement_gauge,
	[SET_GAUGE] = envoy_dynamic_module_callback_http_filter_set_gauge,
	[RECORD] = envoy_dynamic_module_callback_http_filter_record_histogram_value,
};

static const change outside_request[] = {
	[ADD_TO_COUNTER] = envoy_dynamic_module_callback_http_filter_config_increment_counter,
	[ADD_TO_GAUGE] = envoy_dynamic_module_callback_http_filter_config_increment_gauge,
	[TAKE_FROM_GAUGE] = envoy_dynamic_module_callback_http_filter_config_decrement_gauge,
	[SET_GAUGE] = envoy_dynamic_module_callback_http_filter_config_set_gauge,
	[RECORD] = envoy_dynamic_module_callback_http_filter_config_record_histogram_value,
};

// A place is where a change is made: in a stream's request, or outside of one.
typedef struct place {
	const plugin *plugin;
	void *stream; // NULL outside of a request
} place;

static place place_of(const instance *i) {
	const stream *s = i->running;
	if (s != NULL && s->envoy != NULL) {
		return (place){s->plugin, s->envoy};
	}
	return (place){i->root != NULL ? i->root->plugin : NULL, NULL};
}

// tell_envoy makes a change of a metric, and reports false if Envoy cannot be told here. It needs the
// lock.
static bool tell_envoy(place p, metric *m, how h, uint64_t value) {
	if (p.plugin == NULL || m->family >= p.plugin->metric_count) {
		return false;
	}
	change f = p.stream != NULL ? in_request[h] : outside_request[h];
	if (f == NULL) {
		return false;
	}
	f(p.stream != NULL ? p.stream : p.plugin->envoy, p.plugin->metrics[m->family], m->labels,
		families[m->family].label_count, value);
	return true;
}

// add adds to a counter or a gauge. It needs the lock.
static bool add(place p, metric *m, int64_t value) {
	if (families[m->family].kind == COUNTER) {
		return tell_envoy(p, m, ADD_TO_COUNTER, (uint64_t)value);
	}
	return value < 0 ? tell_envoy(p, m, TAKE_FROM_GAUGE, (uint64_t)-value)
			 : tell_envoy(p, m, ADD_TO_GAUGE, (uint64_t)value);
}

// add_later adds to a counter or a gauge, at the next request if Envoy cannot be told here. It needs the
// lock.
static void add_later(place p, metric *m, int64_t value) {
	if (!add(p, m, value)) {
		m->added += value;
		waiting = true;
	}
}

// record_later sets a gauge or records a value, like add_later. Of many values between two requests it
// keeps some.
static void record_later(place p, metric *m, uint64_t value) {
	bool gauge = families[m->family].kind == GAUGE;
	if (tell_envoy(p, m, gauge ? SET_GAUGE : RECORD, value)) {
		return;
	}
	if (gauge) {
		m->set = value;
		m->is_set = true;
	} else if (m->recorded_count < sizeof m->recorded / sizeof m->recorded[0]) {
		m->recorded[m->recorded_count++] = value;
	}
	waiting = true;
}

// flush_metric tells Envoy of the changes of a metric that wait. A plugin that was loaded before the
// metric was known cannot: the changes wait on. It needs the lock.
static void flush_metric(place p, metric *m) {
	if (m->family >= p.plugin->metric_count) {
		waiting = waiting || m->is_set || m->added != 0 || m->recorded_count > 0;
		return;
	}
	if (m->is_set) {
		tell_envoy(p, m, SET_GAUGE, m->set);
	}
	if (m->added != 0) {
		add(p, m, m->added);
	}
	for (size_t v = 0; v < m->recorded_count; v++) {
		tell_envoy(p, m, RECORD, m->recorded[v]);
	}
	m->is_set = false;
	m->added = 0;
	m->recorded_count = 0;
}

// flush_metrics tells Envoy in a request of the changes that wait.
void flush_metrics(const stream *s) {
	if (!waiting) {
		return;
	}
	place p = {s->plugin, s->envoy};
	pthread_mutex_lock(&lock);
	waiting = false;
	for (size_t n = 0; n < metric_count; n++) {
		flush_metric(p, &metrics[n]);
	}
	uint64_t count = atomic_exchange(&faults, 0);
	if (count > 0 && FAULTS < p.plugin->metric_count) {
		metric m = {.family = FAULTS};
		tell_envoy(p, &m, ADD_TO_COUNTER, count);
	}
	pthread_mutex_unlock(&lock);
}

// count_fault counts a fault of the module.
void count_fault(void) {
	faults++;
	waiting = true;
}

// define_family defines a family for a configuration that Envoy loads.
static size_t define_family(void *config, const family *f) {
	module_bytes name = {f->name, strlen(f->name)}, labels[MOST_LABELS];
	size_t id = 0;
	for (size_t n = 0; n < f->label_count; n++) {
		labels[n] = (module_bytes){f->labels[n], strlen(f->labels[n])};
	}
	switch (f->kind) {
	case COUNTER:
		envoy_dynamic_module_callback_http_filter_config_define_counter(config, name, labels, f->label_count, &id);
		break;
	case GAUGE:
		envoy_dynamic_module_callback_http_filter_config_define_gauge(config, name, labels, f->label_count, &id);
		break;
	case HISTOGRAM:
		envoy_dynamic_module_callback_http_filter_config_define_histogram(
			config, name, labels, f->label_count, &id);
		break;
	}
	return id;
}

// define_for defines a plugin's families that it does not have yet. It needs the lock.
static bool define_for(plugin *p) {
	size_t *ids = realloc(p->metrics, family_count * sizeof *ids);
	if (ids == NULL) {
		return false;
	}
	p->metrics = ids;
	while (p->metric_count < family_count) {
		ids[p->metric_count] = define_family(p->envoy, &families[p->metric_count]);
		p->metric_count++;
	}
	return true;
}

// add_family adds a family, and reports false without memory. It needs the lock.
static bool add_family(family f) {
	family *list = realloc(families, (family_count + 1) * sizeof *list);
	if (list == NULL) {
		return false;
	}
	families = list;
	families[family_count++] = f;
	return true;
}

// define_known_metrics defines all known metrics for a plugin that Envoy loads.
void define_known_metrics(plugin *p) {
	pthread_mutex_lock(&lock);
	for (size_t n = family_count; n < LATE && add_family(late[n]); n++) {
	}
	define_for(p);
	pthread_mutex_unlock(&lock);
}

// split finds the labels in a name of a family's metric, and reports whether it is such a name. A
// policy's name may contain any part of the other names, so the last place counts.
static bool split(const family *f, const char *name, size_t length, module_bytes *labels) {
	if (f->label_count == 0) {
		return strlen(f->name) == length && memcmp(f->name, name, length) == 0;
	}
	size_t before = strlen(f->before), after = strlen(f->after), between = strlen(f->between);
	if (length <= before + after || memcmp(name, f->before, before) != 0 ||
		memcmp(name + length - after, f->after, after) != 0) {
		return false;
	}
	const char *from = name + before, *end = name + length - after;
	labels[0] = (module_bytes){from, (size_t)(end - from)};
	if (f->label_count == 1) {
		return true;
	}
	for (const char *at = end - between; at > from; at--) {
		if (memcmp(at, f->between, between) == 0) {
			labels[0].length = (size_t)(at - from);
			labels[1] = (module_bytes){at + between, (size_t)(end - at) - between};
			return true;
		}
	}
	return false;
}

// family_of returns the place of the family of a name. A name without one becomes a family, if a plugin
// is being loaded: P is NULL if none is. It needs the lock.
static size_t family_of(plugin *p, kind k, metric *m, size_t length) {
	for (size_t n = 0; n < family_count; n++) {
		if (families[n].kind == k && split(&families[n], m->name, length, m->labels)) {
			return n;
		}
	}
	if (p == NULL || !add_family((family){.kind = k, .name = m->name}) || !define_for(p)) {
		return family_count;
	}
	return family_count - 1;
}

// new_metric adds a metric that no instance has defined, and returns its place; metric_count if that
// cannot be done. It needs the lock.
static size_t new_metric(instance *i, kind k, const char *name, size_t length) {
	metric *list = realloc(metrics, (metric_count + 1) * sizeof *list);
	if (list == NULL) {
		return metric_count;
	}
	metrics = list;
	metric m = {.name = malloc(length + 1), .length = length};
	if (m.name == NULL) {
		return metric_count;
	}
	memcpy(m.name, name, length);
	m.name[length] = 0;
	m.family = family_of(i->root != NULL && i->root->plugin->loading ? i->root->plugin : NULL, k, &m, length);
	if (m.family == family_count) {
		free(m.name);
		return metric_count;
	}
	metrics[metric_count] = m;
	if (families[m.family].label_count > 0 && k != HISTOGRAM) {
		add_later(place_of(i), &metrics[metric_count], 0); // Now Envoy shows it, as with Wasm.
	}
	return metric_count++;
}

u32 Z_envZ_proxy_define_metric(struct Z_env_instance_t *env, u32 k, u32 name_at, u32 length, u32 id_at) {
	instance *i = (instance *)env;
	const char *name = bytes_at(i, name_at, length);
	bytes_at(i, id_at, sizeof(uint32_t)); // A fault must not happen under the lock.
	if (k > HISTOGRAM) {
		return BAD_ARGUMENT;
	}
	pthread_mutex_lock(&lock);
	size_t n = 0;
	while (n < metric_count &&
		(metrics[n].length != length || memcmp(metrics[n].name, name, length) != 0)) {
		n++;
	}
	bool defined = n < metric_count;
	if (!defined) {
		size_t count = metric_count;
		n = new_metric(i, (kind)k, name, length);
		defined = metric_count > count;
	}
	pthread_mutex_unlock(&lock);
	if (!defined) {
		write_log(envoy_dynamic_module_type_log_level_Error,
			"weir: cannot define the metric %.*s: Envoy defines metrics only while it loads a configuration",
			(int)length, name);
		return INTERNAL_FAILURE;
	}
	put_number(i, id_at, (uint32_t)n);
	return OK;
}

u32 Z_envZ_proxy_increment_metric(struct Z_env_instance_t *env, u32 id, u64 value) {
	instance *i = (instance *)env;
	pthread_mutex_lock(&lock);
	bool known = id < metric_count;
	if (known) {
		add_later(place_of(i), &metrics[id], (int64_t)value);
	}
	pthread_mutex_unlock(&lock);
	return known ? OK : NOT_FOUND;
}

u32 Z_envZ_proxy_record_metric(struct Z_env_instance_t *env, u32 id, u64 value) {
	instance *i = (instance *)env;
	pthread_mutex_lock(&lock);
	bool known = id < metric_count;
	if (known) {
		record_later(place_of(i), &metrics[id], value);
	}
	pthread_mutex_unlock(&lock);
	return known ? OK : NOT_FOUND;
}
