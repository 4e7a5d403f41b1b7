package envoytest

import (
	"slices"
	"strconv"
	"time"
)

// Call is an HTTP call that a guest made. It is bound to the guest's root context: it outlives the
// stream it was made from, and dies without a callback when the root context or the VM goes.
type Call struct {
	ID       uint32 // as the guest knows it; unique in its VM
	VM       int    // the worker, Main or Canary that made it
	Cluster  string
	Headers  [][2]string
	Body     []byte
	Trailers [][2]string
	Timeout  time.Duration // 0 is none
	At       time.Duration // monotonic time of the dispatch

	root     *wasmContext
	refused  bool // see FailNow
	inHook   bool
	decided  bool // an outcome is scheduled
	finished bool
}

// callResponse is the part of an answer that a guest sees.
type callResponse struct {
	headers, trailers *headerMap
	body              []byte
}

// Header returns the first value of a request header of the call, "" if there is none; name is in
// lower case.
func (c *Call) Header(name string) string {
	for _, p := range c.Headers {
		if p[0] == name {
			return p[1]
		}
	}
	return ""
}

// Respond answers the call when the given time has passed, in Host.Advance: a call is never
// answered while the guest runs. If the timeout comes first, the guest gets that instead. Only the
// first outcome that is given to a call counts.
func (c *Call) Respond(after time.Duration, status int, headers [][2]string, body []byte) {
	r := &callResponse{headers: newHeaderMap(inlineResponseHeaders, [][2]string{{":status", strconv.Itoa(status)}}),
		body: slices.Clone(body)}
	for _, p := range headers {
		r.headers.add(p[0], p[1])
	}
	c.decide(after, r)
}

// FailConnection lets the call fail to connect: the guest gets a 503 of the proxy's own making.
func (c *Call) FailConnection(after time.Duration) {
	c.decide(after, proxyResponse("503",
		"upstream connect error or disconnect/reset before headers. reset reason: remote connection failure"))
}

// Reset breaks the call: the guest's callback gets no headers at all.
func (c *Call) Reset(after time.Duration) { c.decide(after, nil) }

// FailNow lets the dispatch itself fail, as it does if the cluster has no healthy host: the guest
// gets an internal failure and no callback. It is for Options.Calls; later it is a problem.
func (c *Call) FailNow() {
	h := c.root.vm.h
	h.mu.Lock()
	inHook := c.inHook
	c.refused = c.refused || inHook
	h.mu.Unlock()
	if !inHook {
		h.problem("call %d of VM %d: FailNow after the dispatch", c.ID, c.VM)
	}
}

func (c *Call) decide(after time.Duration, r *callResponse) {
	h := c.root.vm.h
	h.mu.Lock()
	again := c.decided
	c.decided = true
	h.mu.Unlock()
	if !again {
		h.clock.after(after, func() { c.deliver(r) })
	}
}

// deliver hands the outcome to the guest, unless there was one before, or its caller is gone.
func (c *Call) deliver(r *callResponse) {
	root := c.root
	v, h := root.vm, root.vm.h
	v.thread.mu.Lock()
	defer v.thread.mu.Unlock()
	h.mu.Lock()
	done := c.finished
	h.dropCalls(func(x *Call) bool { return x == c })
	h.mu.Unlock()
	if done || v.failed || root.deleted {
		return
	}
	headers, body, trailers := 0, 0, 0
	if r != nil {
		headers, body, trailers = r.headers.len(), len(r.body), r.trailers.len()
		root.response = r
	} else {
		root.failure = "reset"
	}
	v.postpone(func() { root.response, root.failure = nil, "" })
	v.call(onHTTPCallResponse, root, uint64(c.ID), uint64(headers), uint64(body), uint64(trailers))
	v.afterCall()
}

// dropCalls forgets calls; they will not be delivered. The caller holds h.mu.
func (h *Host) dropCalls(which func(*Call) bool) {
	h.calls = slices.DeleteFunc(h.calls, func(c *Call) bool {
		if which(c) {
			c.finished = true
			return true
		}
		return false
	})
}

// cancelCalls drops the calls of a root context.
func (h *Host) cancelCalls(root *wasmContext) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.dropCalls(func(c *Call) bool { return c.root == root })
}

// Calls returns the calls that wait for their outcome, oldest first.
func (h *Host) Calls() []*Call {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.calls)
}

// dispatch starts a call. Unknown cluster and missing pseudo-headers are bad arguments; a cluster
// that cannot take the call is an internal failure, and then no callback follows.
func (h *Host) dispatch(c *Call, headers *headerMap) status {
	h.mu.Lock()
	known := h.clusters == nil || h.clusters[c.Cluster]
	h.mu.Unlock()
	for _, name := range []string{":method", ":path", ":authority"} {
		_, ok := headers.first(name)
		known = known && ok
	}
	if !known {
		return statusBadArgument
	}
	v := c.root.vm
	v.lastCallID += 4 // the host keeps the kind of call in the low bits
	c.ID = v.lastCallID
	h.mu.Lock()
	h.calls = append(h.calls, c)
	c.inHook = true
	h.mu.Unlock()
	if h.opt.Calls != nil {
		h.opt.Calls(c)
	}
	h.mu.Lock()
	c.inHook = false
	if c.refused {
		h.dropCalls(func(x *Call) bool { return x == c })
	}
	h.mu.Unlock()
	if c.refused {
		c.ID = 0
		return statusInternalFailure
	}
	if c.Timeout > 0 {
		h.clock.after(c.Timeout, c.timeOut)
	}
	return statusOK
}

// timeOut gives the guest the proxy's own 504.
func (c *Call) timeOut() {
	c.deliver(proxyResponse("504", "upstream request timeout"))
}

// proxyResponse returns an answer that the proxy makes itself.
func proxyResponse(status, body string) *callResponse {
	return &callResponse{body: []byte(body), headers: newHeaderMap(inlineResponseHeaders, [][2]string{
		{":status", status}, {"content-length", strconv.Itoa(len(body))}, {"content-type", "text/plain"},
	})}
}
