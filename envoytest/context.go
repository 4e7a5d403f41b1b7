package envoytest

import "time"

// wasmContext is a context of the ABI: the VM's own context (id 0), a root context, or a stream.
type wasmContext struct {
	id     uint32
	vm     *vm
	root   *wasmContext // itself, unless this is a stream
	stream *Stream      // nil, unless this is a stream
	plugin *plugin      // nil for the VM's own

	created     bool // the guest knows of it
	deleted     bool
	configuring bool // the plugin configuration can be read

	tickPeriod time.Duration
	ticker     uint64 // number of the timer in force: a changed period makes the older one void

	response *callResponse // of the HTTP call whose callback runs
	failure  string        // why that call got no response, for proxy_get_status
	shutdown bool          // proxy_on_done said that it is not done: proxy_done will follow
}

func (v *vm) newContext(p *plugin, root *wasmContext, s *Stream) *wasmContext {
	c := &wasmContext{id: v.nextID, vm: v, root: root, stream: s, plugin: p}
	v.nextID++
	if root == nil {
		c.root = c
	}
	v.contexts[c.id] = c
	return c
}

// start makes a root context known to the guest. proxy_on_vm_start follows proxy_on_context_create,
// for every root context and not once per VM.
func (c *wasmContext) start() bool {
	defer c.vm.afterCall()
	if c.vm.exports[onContextCreate] != nil {
		c.configuring = true
		c.vm.call(onContextCreate, c, 0)
		c.configuring = false
		c.created = true
	}
	if c.vm.exports[onVMStart] == nil {
		return true
	}
	return uint32(c.vm.call(onVMStart, c, uint64(len(c.vm.h.opt.VMConfig)))) != 0
}

// configure hands the plugin configuration to a root context.
func (c *wasmContext) configure() bool {
	if c.vm.failed {
		return true
	}
	defer c.vm.afterCall()
	c.created = true
	if c.vm.exports[onConfigure] == nil {
		return true
	}
	c.configuring = true
	ok := uint32(c.vm.call(onConfigure, c, uint64(len(c.plugin.config)))) != 0
	c.configuring = false
	return ok
}

// create makes a stream known to the guest.
func (c *wasmContext) create() {
	if !c.created {
		c.vm.call(onContextCreate, c, uint64(c.root.id))
		c.vm.afterCall()
	}
	c.created = true
}

// delete tells the guest that the context is gone and forgets it.
func (c *wasmContext) delete() {
	if c.deleted {
		return
	}
	if c.created {
		c.vm.call(onDelete, c)
		c.vm.afterCall()
	}
	c.deleted = true
	delete(c.vm.contexts, c.id)
	if c.root == c {
		c.vm.h.cancelCalls(c)
	}
}

// done asks the guest whether it is done with the context; without the callback it is.
func (c *wasmContext) done() bool {
	if c.vm.failed || c.vm.exports[onDone] == nil {
		return true
	}
	defer c.vm.afterCall()
	return uint32(c.vm.call(onDone, c)) != 0
}

// setTick starts the timer of a root context anew, or stops it with period 0.
func (c *wasmContext) setTick(period time.Duration) {
	c.ticker++
	c.tickPeriod = period
	c.armTick()
}

// armTick schedules the next tick, a period from now. It is called again after each callback, so
// that the time a callback takes adds to the period; here callbacks take none.
func (c *wasmContext) armTick() {
	if c.tickPeriod <= 0 {
		return
	}
	ticker := c.ticker
	c.vm.h.clock.after(c.tickPeriod, func() {
		c.vm.thread.mu.Lock()
		defer c.vm.thread.mu.Unlock()
		if c.vm.failed || c.deleted || c.ticker != ticker {
			return
		}
		c.vm.call(onTick, c)
		c.vm.afterCall()
		if c.ticker == ticker {
			c.armTick()
		}
	})
}
