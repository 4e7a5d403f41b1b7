// Faults of the module. Each callback of the module runs in run_module, and a fault goes back there:
// a trap of wasm2c's code by wasm_rt_trap, an access beyond the memory by a signal.
//
// Envoy has signal handlers of its own. The handlers here stand before them, take a signal only if it
// comes from the memory of the instance that runs on this thread, and pass on any other signal.
#include <signal.h>
#include <string.h>

#include "host.h"

// The module's depth of calls, which wasm2c's code counts.
_Thread_local uint32_t weir_call_depth;

// The instance whose callback runs on this thread, if any. Envoy has room for few variables of threads.
static _Thread_local instance *running;

void wasm_rt_trap(wasm_rt_trap_t trap) {
	if (running == NULL) {
		abort(); // Only run_module runs code that traps.
	}
	longjmp(running->back, (int)trap);
}

const char *wasm_rt_strerror(wasm_rt_trap_t trap) {
	static const char *const names[] = {
		[WASM_RT_TRAP_NONE] = "no fault",
		[WASM_RT_TRAP_OOB] = "access beyond the memory",
		[WASM_RT_TRAP_INT_OVERFLOW] = "integer overflow",
		[WASM_RT_TRAP_DIV_BY_ZERO] = "division by zero",
		[WASM_RT_TRAP_INVALID_CONVERSION] = "invalid conversion to an integer",
		[WASM_RT_TRAP_UNREACHABLE] = "unreachable instruction",
		[WASM_RT_TRAP_CALL_INDIRECT] = "call of a function that does not exist",
		[WASM_RT_TRAP_UNCAUGHT_EXCEPTION] = "uncaught exception",
		[WASM_RT_TRAP_EXHAUSTION] = "exhausted stack",
	};
	const char *name = (size_t)trap < sizeof names / sizeof names[0] ? names[trap] : NULL;
	return name != NULL ? name : "unknown fault";
}

// The handlers that were there before, by signal.
static struct sigaction before_segv, before_bus;

// pass_on gives a signal to the handler that was there before.
static void pass_on(int number, siginfo_t *info, void *context) {
	const struct sigaction *before = number == SIGBUS ? &before_bus : &before_segv;
	if ((before->sa_flags & SA_SIGINFO) != 0) {
		before->sa_sigaction(number, info, context);
	} else if (before->sa_handler != SIG_DFL && before->sa_handler != SIG_IGN) {
		before->sa_handler(number);
	} else {
		signal(number, SIG_DFL); // The instruction runs again and ends the process.
	}
}

// take_fault goes back to run_module if the module's memory is the signal's cause.
static void take_fault(int number, siginfo_t *info, void *context) {
	instance *i = running;
	if (i != NULL && i->module.w2c_memory.data != NULL) {
		uintptr_t from = (uintptr_t)i->module.w2c_memory.data, at = (uintptr_t)info->si_addr;
		if (at >= from && at - from < RESERVED) {
			longjmp(running->back, WASM_RT_TRAP_OOB);
		}
	}
	pass_on(number, info, context);
}

// install_fault_handlers installs the handlers, in front of Envoy's. They do not block the signal,
// so a jump out of them keeps the thread's signal mask.
void install_fault_handlers(void) {
	struct sigaction action;
	memset(&action, 0, sizeof action);
	action.sa_sigaction = take_fault;
	action.sa_flags = SA_SIGINFO | SA_NODEFER | SA_ONSTACK;
	sigemptyset(&action.sa_mask);
	sigaction(SIGSEGV, &action, &before_segv);
	sigaction(SIGBUS, &action, &before_bus);
}

// run_module runs one callback of the module. After a fault it drops the instance and returns false.
// It needs the lock.
bool run_module(instance *i, void (*call)(instance *, void *), void *argument) {
	running = i;
	weir_call_depth = 0;
	int trap = _setjmp(i->back);
	if (trap == 0) {
		call(i, argument);
		running = NULL;
		return true;
	}
	running = NULL;
	write_log(envoy_dynamic_module_type_log_level_Critical,
		"weir: fault in the filter: %s: the thread gets a new instance of the filter",
		wasm_rt_strerror((wasm_rt_trap_t)trap));
	count_fault();
	drop_instance(i);
	return false;
}
