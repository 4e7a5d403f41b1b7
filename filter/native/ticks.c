// Ticks. Envoy gives a module no timer, so a thread of the host waits for the earliest tick of all
// instances, and lets Envoy's main thread run it under the instance's lock. A thread with requests
// runs its ticks itself, before a request: they cost no change of threads there.
#include <errno.h>
#include <time.h>

#include "host.h"

// A thread that had a request within BUSY microseconds will run its tick itself within GRACE.
#define BUSY 2000
#define GRACE 1000

static pthread_mutex_t ticker_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t ticker_wakes;
// The instant until which the ticker sleeps.
static _Atomic int64_t sleeps_until;
// asked: the ticker waits for the main thread. The ticker's lock protects it.
static bool asked;

// microseconds returns the monotonic clock.
int64_t microseconds(void) {
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

// set_due sets when an instance next needs the main thread, and wakes the ticker if it sleeps longer.
// It needs the instance's lock.
void set_due(instance *i, int64_t due) {
	i->due = due;
	if (due < sleeps_until) {
		pthread_mutex_lock(&ticker_lock);
		pthread_cond_signal(&ticker_wakes);
		pthread_mutex_unlock(&ticker_lock);
	}
}

// note_due notes the earliest tick of an instance. It needs the instance's lock.
void note_due(instance *i) {
	int64_t due = NEVER;
	for (const root *r = i->roots; r != NULL; r = r->next) {
		due = r->due < due ? r->due : due;
	}
	set_due(i, due);
}

// set_tick sets the period of a plugin's ticks, which begins now; 0 ends them. It needs the lock.
static void set_tick(instance *i, root *r, int64_t period) {
	r->period = period;
	r->due = period > 0 ? microseconds() + period : NEVER;
	note_due(i);
}

u32 Z_envZ_proxy_set_tick_period_milliseconds(struct Z_env_instance_t *env, u32 period) {
	instance *i = (instance *)env;
	if (i->root == NULL) {
		return BAD_ARGUMENT;
	}
	set_tick(i, i->root, (int64_t)period * 1000);
	return OK;
}

static void call_tick(instance *i, void *argument) {
	Z_weirZ_proxy_on_tick(&i->module, ((root *)argument)->context);
}

// run_due_ticks runs the ticks of an instance that are due, and starts a dead instance. It needs the
// lock.
void run_due_ticks(instance *i, int64_t now) {
	if (!i->alive) {
		start_instance(i);
		return;
	}
	for (root *r = i->roots; r != NULL && i->alive; r = r->next) {
		if (r->due <= now) {
			r->due = now + r->period; // The module may set another one.
			i->root = r;
			run_module(i, call_tick, r);
		}
	}
	if (i->alive) {
		note_due(i);
	}
}

// run_all_due_ticks runs the ticks that are due in all instances, on the main thread.
void run_all_due_ticks(void) {
	int64_t now = microseconds();
	for (instance *i = instances; i != NULL; i = i->next) {
		if (i->due > now) {
			continue;
		}
		lock_instance(i);
		if (i->due <= now) {
			run_due_ticks(i, now);
		}
		unlock_instance(i);
	}
	pthread_mutex_lock(&ticker_lock);
	asked = false;
	pthread_cond_signal(&ticker_wakes);
	pthread_mutex_unlock(&ticker_lock);
}

// next_due returns when the main thread must run a tick at the latest.
static int64_t next_due(int64_t now) {
	int64_t next = NEVER;
	for (instance *i = instances; i != NULL; i = i->next) {
		int64_t due = i->due;
		if (due != NEVER && now - i->busy < BUSY) {
			due += GRACE;
		}
		next = due < next ? due : next;
	}
	return next;
}

// sleep_until sleeps until an instant or until the ticker is woken.
static void sleep_until(int64_t until) {
	struct timespec t = {until / 1000000, until % 1000000 * 1000};
	pthread_mutex_lock(&ticker_lock);
	sleeps_until = until;
	if (next_due(microseconds()) >= until) { // No tick has been set since the caller looked.
		if (until == NEVER) {
			pthread_cond_wait(&ticker_wakes, &ticker_lock);
		} else {
			pthread_cond_timedwait(&ticker_wakes, &ticker_lock, &t);
		}
	}
	sleeps_until = 0; // Awake: the ticker looks again by itself.
	pthread_mutex_unlock(&ticker_lock);
}

// LATE is the time after which the ticker calls the main thread again for a tick that is due.
#define LATE 20000

// ask_main_thread lets the main thread run the ticks that are due, and waits until it has.
static void ask_main_thread(void) {
	int64_t late = microseconds() + LATE;
	struct timespec t = {late / 1000000, late % 1000000 * 1000};
	pthread_mutex_lock(&ticker_lock);
	asked = true;
	call_main_thread();
	while (asked && pthread_cond_timedwait(&ticker_wakes, &ticker_lock, &t) != ETIMEDOUT) {
	}
	pthread_mutex_unlock(&ticker_lock);
}

static void *run_ticker(void *unused) {
	for (;;) {
		int64_t now = microseconds(), next = next_due(now);
		if (next <= now) {
			ask_main_thread();
		} else {
			sleep_until(next);
		}
	}
	return unused;
}

// start_ticker starts the ticker's thread, once a process.
void start_ticker(void) {
	pthread_condattr_t clock;
	pthread_condattr_init(&clock);
	pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
	pthread_cond_init(&ticker_wakes, &clock);
	pthread_t thread;
	if (pthread_create(&thread, NULL, run_ticker, NULL) != 0) {
		write_log(envoy_dynamic_module_type_log_level_Critical,
			"weir: cannot start a thread: threads without requests do no work in time; raise the limit of threads");
		return;
	}
	pthread_detach(thread);
}
