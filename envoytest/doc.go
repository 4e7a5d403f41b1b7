// Package envoytest runs a proxy-wasm 0.2 filter in a model of Envoy's Wasm host, so that a filter
// can be tested as the module that is shipped, under the rules of the real host, in virtual time
// and without a proxy.
//
// A [Host] is one Envoy process with one Wasm plugin. It has a canary, a VM for the main thread and
// a VM for each worker. All of them use one shared-data store. Time moves only in [Host.Advance],
// which fires ticks and answers calls in time order. Requests are driven one by one through a
// [Worker]:
//
//	h, err := envoytest.New(wasm, envoytest.Options{T: t, Workers: 2, PluginConfig: config})
//	defer h.Close()
//	err = h.Start()
//	headers := [][2]string{{":method", "GET"}, {":path", "/"}, {":authority", "a"}}
//	s := h.Worker(0).Request(envoytest.Request{Headers: headers})
//	if s.State() == envoytest.Continued {
//		reply := s.Respond(200, nil)
//	}
//
// The rules were read in the sources of proxy-wasm-cpp-host and of Envoy's Wasm extension. Where
// they surprise, the place that models them says so. Not modelled: gRPC calls, foreign functions,
// TCP filters, and bodies in more than one chunk (over HTTP/1, Envoy brings even the end of a body
// as an empty chunk of its own).
//
// A call has one outcome, as in Envoy: later outcomes of a test are ignored. If a test needs a
// request that reached its server twice, its server must count it twice.
//
// [Host.Interleave] runs several workers at once: at each host call, a seed chooses the worker that
// goes on.
//
// Different workers may be driven from different goroutines at the same time. Advance, Start,
// UpdatePlugin, Upgrade and Close belong to one goroutine. A hook (Options.Calls, Options.OnShared)
// runs inside a VM: it may drive another worker. It deadlocks if it drives the same worker, asks
// one of its streams for its state, or calls Host.Stats.
package envoytest
