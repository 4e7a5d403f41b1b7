// The data that modules of a process share, in Envoy's place.
#ifndef REGISTRY_H
#define REGISTRY_H

#include "envoy.h"

static void *registered;

bool envoy_dynamic_module_callback_get_shared_data(module_bytes key, void **data) {
	(void)key;
	*data = registered;
	return registered != NULL;
}

bool envoy_dynamic_module_callback_register_shared_data(module_bytes key, void *data) {
	(void)key;
	registered = data;
	return true;
}

#endif
