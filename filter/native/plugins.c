// Plugins: Envoy's callbacks for configurations of the filter.
#include <string.h>

#include "host.h"

// Who holds plugins_lock may take an instance's lock, but not the other way round.
pthread_mutex_t plugins_lock;
plugin *plugins;

// The scheduler of the newest plugin runs events on the main thread. Its lock is the last to take.
static pthread_mutex_t scheduler_lock = PTHREAD_MUTEX_INITIALIZER;
static void *scheduler;

// call_main_thread lets the main thread send calls and run ticks that are due.
void call_main_thread(void) {
	pthread_mutex_lock(&scheduler_lock);
	if (scheduler != NULL) {
		envoy_dynamic_module_callback_http_filter_config_scheduler_commit(scheduler, 0);
	}
	pthread_mutex_unlock(&scheduler_lock);
}

// use_newest_scheduler chooses the scheduler for the main thread. An event of a plugin that is gone is
// lost, so the main thread is called in any case. It needs plugins_lock.
static void use_newest_scheduler(void) {
	pthread_mutex_lock(&scheduler_lock);
	scheduler = plugins != NULL ? plugins->scheduler : NULL;
	pthread_mutex_unlock(&scheduler_lock);
	call_main_thread();
}

static bool host_started;

static void start_host(void) {
	pthread_mutexattr_t recursive; // Envoy may answer a call at once.
	pthread_mutexattr_init(&recursive);
	pthread_mutexattr_settype(&recursive, PTHREAD_MUTEX_RECURSIVE);
	pthread_mutex_init(&plugins_lock, &recursive);
	if (!init_shared_data()) {
		return;
	}
	Z_weir_init_module();
	install_fault_handlers();
	start_ticker();
	host_started = true;
}

// The version of the interface: the hash of abi.h. Later versions of Envoy warn of it, and run the
// module.
EXPORT const char *envoy_dynamic_module_on_program_init(void) {
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	pthread_once(&once, start_host);
	return host_started ? ABI_HASH : NULL; // Envoy refuses a module without a version.
}

static text copy_text(envoy_bytes from) {
	text t = {malloc(from.length + 1), from.length};
	if (t.bytes != NULL) {
		memcpy(t.bytes, from.ptr, from.length);
		t.bytes[from.length] = 0;
	}
	return t;
}

static void free_plugin(plugin *p) {
	if (p->scheduler != NULL) {
		envoy_dynamic_module_callback_http_filter_config_scheduler_delete(p->scheduler);
	}
	free(p->name.bytes);
	free(p->configuration.bytes);
	free(p->metrics);
	free(p);
}

// start_in starts a plugin in an instance, and reports whether the module takes its configuration.
static bool start_in(instance *i, plugin *p) {
	lock_instance(i);
	bool started = start_instance(i) && root_of(i, p) != NULL;
	root *r = find_root(i, p);
	if (!started && r != NULL) {
		remove_root(i, r);
	}
	unlock_instance(i);
	return started;
}

// start_plugin starts a plugin in the main thread's instance and, if the module takes its configuration
// there, in the workers' instances. An instance that has a fault in its start tries again with a request.
static bool start_plugin(plugin *p) {
	instance *own = instance_of_thread();
	if (own == NULL || !start_in(own, p)) {
		return false;
	}
	if (envoy_dynamic_module_callback_is_validation_mode()) {
		return true;
	}
	add_instances(envoy_dynamic_module_callback_get_concurrency() + 1);
	for (instance *i = instances; i != NULL; i = i->next) {
		if (i != own) {
			start_in(i, p);
		}
	}
	return true;
}

EXPORT const void *envoy_dynamic_module_on_http_filter_config_new(
	void *envoy, envoy_bytes name, envoy_bytes configuration) {
	plugin *p = calloc(1, sizeof *p);
	if (p == NULL) {
		return NULL;
	}
	p->envoy = envoy;
	p->name = copy_text(name);
	p->configuration = copy_text(configuration);
	p->scheduler = envoy_dynamic_module_callback_http_filter_config_scheduler_new(envoy);
	if (p->name.bytes == NULL || p->configuration.bytes == NULL) {
		free_plugin(p);
		return NULL;
	}
	p->loading = true;
	define_known_metrics(p);
	bool taken = start_plugin(p);
	p->loading = false;
	if (!taken) {
		free_plugin(p);
		return NULL;
	}
	pthread_mutex_lock(&plugins_lock);
	p->next = plugins;
	plugins = p;
	use_newest_scheduler();
	pthread_mutex_unlock(&plugins_lock);
	return p;
}

// The plugin ends in all instances, the main thread's last: it hands over tokens to the plugin that
// replaces it there.
EXPORT void envoy_dynamic_module_on_http_filter_config_destroy(const void *module) {
	plugin *p = (plugin *)module;
	pthread_mutex_lock(&plugins_lock);
	plugin **at = &plugins;
	while (*at != p) {
		at = &(*at)->next;
	}
	*at = p->next;
	use_newest_scheduler();
	pthread_mutex_unlock(&plugins_lock);
	for (instance *i = instances; i != NULL; i = i->next) {
		lock_instance(i);
		root *r = find_root(i, p);
		if (r != NULL) {
			remove_root(i, r);
		}
		unlock_instance(i);
	}
	end_calls_of(p);
	free_plugin(p);
}

EXPORT void envoy_dynamic_module_on_http_filter_config_scheduled(void *envoy, const void *module, uint64_t event) {
	(void)envoy, (void)module, (void)event;
	run_all_due_ticks();
	send_calls();
}
