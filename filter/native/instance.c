// Instances of the module, one for each thread of Envoy, and the plugins in them.
#include <string.h>

#include "host.h"

_Atomic(instance *) instances;
static _Thread_local instance *of_thread;

// new_instance adds an instance, which is not alive yet; NULL without memory.
static instance *new_instance(bool taken) {
	instance *i = reserve_instance();
	if (i == NULL) {
		return NULL;
	}
	pthread_mutex_init(&i->lock, NULL);
	i->due = NEVER;
	i->taken = taken;
	i->next = instances;
	while (!atomic_compare_exchange_weak(&instances, &i->next, i)) {
	}
	return i;
}

// add_instances adds instances until there are count: the workers' instances, which start before the
// first request, so that they know the policies, bans and tokens of the process by then.
void add_instances(uint32_t count) {
	for (instance *i = instances; i != NULL && count > 0; i = i->next) {
		count--;
	}
	while (count > 0 && new_instance(false) != NULL) {
		count--;
	}
}

// instance_of_thread returns this thread's instance: one that no thread has taken, or a new one; NULL
// without memory.
instance *instance_of_thread(void) {
	for (instance *i = instances; i != NULL && of_thread == NULL; i = i->next) {
		bool taken = false;
		if (atomic_compare_exchange_strong(&i->taken, &taken, true)) {
			of_thread = i;
		}
	}
	if (of_thread == NULL) {
		of_thread = new_instance(true);
	}
	return of_thread;
}

void lock_instance(instance *i) { pthread_mutex_lock(&i->lock); }

// unlock_instance ends a callback, and lets other threads run the instance.
void unlock_instance(instance *i) {
	i->root = NULL;
	i->running = i->selected = NULL;
	i->answer = NULL;
	pthread_mutex_unlock(&i->lock);
}

static void instantiate(instance *i, void *unused) {
	(void)unused;
	Z_weir_instantiate(&i->module, (struct Z_env_instance_t *)i, (struct Z_wasi_snapshot_preview1_instance_t *)i);
	Z_weirZ__initialize(&i->module);
}

// start_instance starts an instance that is not alive, and its plugins. After a fault in the start it
// rests until its next tick. It needs the lock.
bool start_instance(instance *i) {
	if (i->alive) {
		return true;
	}
	if (i->rests && microseconds() < i->due) {
		return false;
	}
	i->rests = true;
	i->generation++;
	i->alive = true; // A fault resets it.
	if (!run_module(i, instantiate, NULL)) {
		return false;
	}
	for (root *r = i->roots; r != NULL; r = r->next) {
		if (!start_root(i, r) && !i->alive) {
			return false;
		}
	}
	i->rests = false;
	note_due(i);
	return true;
}

// A dead instance starts anew after this time without a request, in microseconds.
#define RESTART_AFTER 100000

// drop_instance frees an instance's module after a fault. Paused streams that are not decided yet are
// decided again. It needs the lock.
void drop_instance(instance *i) {
	i->alive = false;
	wasm_rt_free_memory(&i->module.w2c_memory);
	wasm_rt_free_funcref_table(&i->module.w2c_T0);
	memset(&i->module, 0, sizeof i->module);
	for (root *r = i->roots; r != NULL; r = r->next) {
		r->started = false;
		r->period = 0;
		r->due = NEVER;
	}
	forget_paused(i);
	set_due(i, microseconds() + RESTART_AFTER);
}

// find_root returns a plugin's root in an instance, NULL if it has none. It needs the lock.
root *find_root(instance *i, const plugin *p) {
	root *r = i->roots;
	while (r != NULL && r->plugin != p) {
		r = r->next;
	}
	return r;
}

// find_context returns the root with a context, NULL if there is none. It needs the lock.
root *find_context(instance *i, uint32_t context) {
	root *r = i->roots;
	while (r != NULL && r->context != context) {
		r = r->next;
	}
	return r;
}

// root_of returns a plugin's root in an instance that is alive, started; NULL if it cannot start. It
// needs the lock.
root *root_of(instance *i, plugin *p) {
	root *r = find_root(i, p);
	if (r == NULL) {
		r = calloc(1, sizeof *r);
		if (r == NULL) {
			return NULL;
		}
		r->plugin = p;
		r->due = NEVER;
		root **last = &i->roots; // The oldest plugin first, as in the module.
		while (*last != NULL) {
			last = &(*last)->next;
		}
		*last = r;
		if (!start_root(i, r) && i->alive) {
			write_log(envoy_dynamic_module_type_log_level_Error,
				"weir: a thread cannot take a configuration that another thread took: its requests pass");
		}
	}
	return r->started ? r : NULL;
}

// A start is a root that the module is to take.
typedef struct start {
	root *root;
	bool taken;
} start;

// new_context returns a number for a context, which no root and no paused stream has: after some days of
// many requests the numbers begin again. It needs the lock.
uint32_t new_context(instance *i) {
	uint32_t n;
	do {
		n = ++i->contexts;
	} while (n == 0 || find_context(i, n) != NULL || find_paused(i, n) != NULL);
	return n;
}

static void call_start(instance *i, void *argument) {
	start *s = argument;
	uint32_t context = s->root->context, length = (uint32_t)s->root->plugin->configuration.length;
	Z_weirZ_proxy_on_context_create(&i->module, context, 0);
	s->taken = Z_weirZ_proxy_on_vm_start(&i->module, context, 0) != 0 &&
		Z_weirZ_proxy_on_configure(&i->module, context, length) != 0;
}

// start_root gives a plugin's configuration to the module, which has logged why if the result is
// false. It needs the lock.
bool start_root(instance *i, root *r) {
	start s = {r, false};
	r->context = new_context(i);
	i->root = r;
	r->started = run_module(i, call_start, &s) && s.taken;
	return r->started;
}

static void call_delete_root(instance *i, void *argument) {
	Z_weirZ_proxy_on_delete(&i->module, ((root *)argument)->context);
}

// remove_root ends a plugin in an instance. It needs the lock.
void remove_root(instance *i, root *r) {
	i->root = r;
	if (i->alive) {
		run_module(i, call_delete_root, r);
	}
	root **at = &i->roots;
	while (*at != r) {
		at = &(*at)->next;
	}
	*at = r->next;
	i->root = NULL;
	free(r);
	if (i->roots == NULL) { // No plugin is left: another build may have taken over.
		if (i->alive) {
			drop_instance(i);
		}
		i->rests = false;
		i->due = NEVER;
	} else if (i->alive) {
		note_due(i);
	}
}
