//go:build tinygo

package plugin

import (
	_ "unsafe" // for the SDK's callbacks

	"github.com/tetratelabs/proxy-wasm-go-sdk/proxywasm/types"

	"github.com/weir-proxy/weir/filter/internal/decide/limiter"
	"github.com/weir-proxy/weir/filter/internal/envoy/host"
)

// The callbacks of streams are the filter's own, not the SDK's, which keeps several maps of them
// and allocates for each. They are exported as weir_on_NAME; the build puts them into the place of
// proxy_on_NAME. What concerns plugins goes on to the SDK.

// plugins are the plugin contexts of the VM, the oldest first. There is one, but for several
// plugins that share a VM and while a new configuration takes an old one's place.
var plugins []*pluginContext

// streams are the requests of which something must be kept after their callback, by stream: chained
// lists, as many as a power of two. Envoy numbers streams in turn, so the lists are short.
var streams struct {
	lists []*httpContext
	count int
	// spare are contexts for further requests; they keep their memory.
	spare *httpContext
}

func listOf(stream uint32) **httpContext { return &streams.lists[stream&uint32(len(streams.lists)-1)] }

func find(stream uint32) *httpContext {
	if streams.count == 0 {
		return nil
	}
	c := *listOf(stream)
	for c != nil && c.request.Stream != stream {
		c = c.next
	}
	return c
}

// take is a context for a stream, which is not kept yet.
func take(stream uint32) *httpContext {
	c := streams.spare
	if c == nil {
		c = new(httpContext)
	} else {
		streams.spare, c.next = c.next, nil
	}
	c.request.Stream = stream
	return c
}

// keep makes find know a context.
func keep(c *httpContext) {
	c.kept = true
	streams.count++
	if streams.count > len(streams.lists) {
		old := streams.lists
		streams.lists = make([]*httpContext, max(2*len(old), 64))
		for _, c := range old {
			for c != nil {
				next := c.next
				link(c)
				c = next
			}
		}
	}
	link(c)
}

func link(c *httpContext) {
	list := listOf(c.request.Stream)
	c.next, *list = *list, c
}

// forget gives a context back.
func forget(c *httpContext) {
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
	if len(plugins) > 1 { // With one it is clear whose the stream is.
		c := take(id)
		c.plugin = pluginOf(root)
		keep(c)
	}
}

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
	c := find(id)
	if c == nil {
		c = take(id)
		c.plugin = plugins[0] // The only one when the stream began.
	}
	action := c.onRequestHeaders()
	if used := c.waiting || c.headers.Len() > 0 || c.request.Lasting; used && !c.kept {
		keep(c)
	} else if !used {
		forget(c)
	}
	return uint32(action)
}

// A request that waits keeps its body and its trailers, too: Envoy goes on with it as soon as one
// of them is let through, where its filter is set to stop with the headers alone.

//export weir_on_request_body
func onRequestBody(id, _, _ uint32) uint32 { return waits(id) }

//export weir_on_request_trailers
func onRequestTrailers(id, _ uint32) uint32 { return waits(id) }

// waits is the action for more of a request: the same as for its headers.
func waits(id uint32) uint32 {
	if c := find(id); c != nil && c.waiting {
		return uint32(types.ActionPause)
	}
	return uint32(types.ActionContinue)
}

//export weir_on_response_headers
func onResponseHeaders(id, _, _ uint32) uint32 {
	host.Begin()
	if c := find(id); c != nil && !c.waiting {
		c.onResponseHeaders()
		if c.request.Guarded() || c.request.Reserves() { // Others have no use for the time.
			c.answered()
			if c.request.Reserves() {
				c.plugin.limiter.SettleHead(&c.request, head{c.plugin}, c.life.Answered)
				c.logCosts()
				c.plugin.wake()
			}
		}
		if !c.request.Lasting {
			forget(c)
		}
	}
	return 0
}

// Envoy shows trailers in this callback alone. A stream of which nothing is kept, or whose cost
// does not stand there, leaves it at once.

//export weir_on_response_trailers
func onResponseTrailers(id, _ uint32) uint32 {
	if c := find(id); c != nil && !c.waiting && c.request.Reserves() {
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
	if c := find(id); c != nil {
		c.onDone()
		forget(c)
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
