//go:build tinygo

package plugin

import (
	_ "unsafe" // for the SDK's callbacks

	"github.com/tetratelabs/proxy-wasm-go-sdk/proxywasm/types"

	"github.com/weir-proxy/weir/filter/internal/decide/limiter"
	"github.com/weir-proxy/weir/filter/internal/envoy/host"
)

// The callbacks of streams are the filter's own. The SDK's callbacks keep several maps of streams,
// and allocate for each stream. The filter's are exported as weir_on_NAME, and the build puts them
// in the place of proxy_on_NAME. Callbacks of plugins go on to the SDK.

// plugins are the plugin contexts of the VM, the oldest first. There is one plugin, unless several
// plugins share the VM or a new configuration is taking over from an old configuration.
var plugins []*pluginContext

// streams are the requests whose context must be kept after their callback: linked lists by stream,
// in a number that is a power of two. Envoy numbers streams in sequence, so the lists are short.
var streams struct {
	lists []*httpContext
	count int
	// spare are contexts for further requests; they keep their memory.
	spare *httpContext
}

// listOf returns the list for a stream.
func listOf(stream uint32) **httpContext { return &streams.lists[stream&uint32(len(streams.lists)-1)] }

// findStream returns the kept context of a stream; nil if there is none.
func findStream(stream uint32) *httpContext {
	if streams.count == 0 {
		return nil
	}
	c := *listOf(stream)
	for c != nil && c.request.Stream != stream {
		c = c.next
	}
	return c
}

// takeContext returns a context for a stream, which is not kept yet.
func takeContext(stream uint32) *httpContext {
	c := streams.spare
	if c == nil {
		c = new(httpContext)
	} else {
		streams.spare, c.next = c.next, nil
	}
	c.request.Stream = stream
	return c
}

// keepContext adds a context to the lists, so that findStream finds it.
func keepContext(c *httpContext) {
	c.kept = true
	streams.count++
	if streams.count > len(streams.lists) {
		old := streams.lists
		streams.lists = make([]*httpContext, max(2*len(old), 64))
		for _, c := range old {
			for c != nil {
				next := c.next
				linkContext(c)
				c = next
			}
		}
	}
	linkContext(c)
}

// linkContext puts a context in front of its list.
func linkContext(c *httpContext) {
	list := listOf(c.request.Stream)
	c.next, *list = *list, c
}

// forgetContext removes a context from the lists, and makes it spare.
func forgetContext(c *httpContext) {
	if c.kept {
		at := listOf(c.request.Stream)
		for *at != c {
			at = &(*at).next
		}
		*at = c.next
		streams.count--
	}
	c.plugin, c.kept, c.waiting, c.asking = nil, false, false, 0
	c.life = limiter.Life{}
	c.headers.Reset()
	c.next, streams.spare = streams.spare, c
}

//go:linkname sdkContextCreate proxy_on_context_create
func sdkContextCreate(id, root uint32)

//go:linkname sdkDelete proxy_on_delete
func sdkDelete(id uint32)

//export weir_on_context_create
func onContextCreate(id, root uint32) {
	if root == 0 {
		sdkContextCreate(id, root)
		return
	}
	if len(plugins) > 1 { // With one plugin the stream is certainly its stream.
		c := takeContext(id)
		c.plugin = pluginOf(root)
		keepContext(c)
	}
}

// pluginOf returns the plugin context with an id.
func pluginOf(id uint32) *pluginContext {
	for _, p := range plugins {
		if p.id == id {
			return p
		}
	}
	return nil
}

//export weir_on_request_headers
func onRequestHeaders(id, _, _ uint32) uint32 {
	host.Begin()
	c := findStream(id)
	if c == nil {
		c = takeContext(id)
		c.plugin = plugins[0] // The only plugin when the stream began.
	}
	action := c.onRequestHeaders()
	if used := c.waiting || c.headers.Len() > 0 || c.request.Lasting; used && !c.kept {
		keepContext(c)
	} else if !used {
		forgetContext(c)
	}
	return uint32(action)
}

// A request that waits keeps its body and its trailers too: if Envoy's filter is set to stop with
// the headers only, Envoy would continue the request as soon as its body or its trailers were let
// through.

//export weir_on_request_body
func onRequestBody(id, _, _ uint32) uint32 { return actionFor(id) }

//export weir_on_request_trailers
func onRequestTrailers(id, _ uint32) uint32 { return actionFor(id) }

// actionFor returns the action for more of a request: the same as for its headers.
func actionFor(id uint32) uint32 {
	if c := findStream(id); c != nil && c.waiting {
		return uint32(types.ActionPause)
	}
	return uint32(types.ActionContinue)
}

//export weir_on_response_headers
func onResponseHeaders(id, _, _ uint32) uint32 {
	host.Begin()
	if c := findStream(id); c != nil && !c.waiting {
		c.onResponseHeaders()
		if c.request.Guarded() || c.request.Reserves() { // Other requests do not need the time.
			c.noteAnswer()
			if c.request.Reserves() {
				c.plugin.limiter.SettleHead(&c.request, head{c.plugin}, c.life.Answered)
				c.logCosts()
				c.plugin.wake()
			}
		}
		if !c.request.Lasting {
			forgetContext(c)
		}
	}
	return 0
}

// Envoy shows trailers in this callback only. A stream without a kept context, or whose cost is not
// in trailers, leaves it at once.

//export weir_on_response_trailers
func onResponseTrailers(id, _ uint32) uint32 {
	if c := findStream(id); c != nil && !c.waiting && c.request.Reserves() {
		host.Begin()
		c.plugin.limiter.SettleTrailers(&c.request, trailers{c.plugin}, c.plugin.clock.Now())
		c.logCosts()
		c.plugin.wake()
	}
	return 0
}

//export weir_on_delete
func onDelete(id uint32) {
	host.Begin()
	if c := findStream(id); c != nil {
		c.onDone()
		forgetContext(c)
		return
	}
	for i, p := range plugins {
		if p.id == id {
			p.onDone()
			copy(plugins[i:], plugins[i+1:])
			plugins[len(plugins)-1] = nil
			plugins = plugins[:len(plugins)-1]
			p.handOver()
			sdkDelete(id)
			return
		}
	}
}
