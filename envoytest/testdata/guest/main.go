// Command guest is a proxy-wasm filter that does what its scripts say, so that a test can make any host call in any
// callback and read in the log what came of it. It knows the host by nothing but the ABI.
//
// A script is a list of commands separated by semicolons, see the table in script.go. Each command logs one line: the
// callback, the command as it was given, and the result. Scripts come from
//   - the environment variable INIT: run by _initialize;
//   - the VM configuration and the plugin configuration, one "callback: script" a line, for the callbacks of root contexts;
//   - request headers "x-on-CALLBACK", for the callbacks of that stream.
package main

import "strings"

var (
	rootScripts   = map[string]string{}
	streamScripts = map[uint32]map[string]string{}
)

var streamCallbacks = []string{
	"request", "request-body", "request-trailers", "response", "response-body", "response-trailers", "log", "done", "delete",
}

func main() {}

func init() {
	run("init", getenv("INIT"), 0)
}

func loadScripts(config string) {
	for _, line := range strings.Split(config, "\n") {
		if name, script, ok := strings.Cut(line, ": "); ok {
			rootScripts[name] = script
		}
	}
}

func buffer(kind uint32) string {
	var ptr, size uint32
	proxyGetBufferBytes(kind, 0, 1<<20, &ptr, &size)
	return text(ptr, size)
}

//export proxy_abi_version_0_2_0
func abiVersion() {}

//export proxy_on_context_create
func onContextCreate(id, parent uint32) {
	contextID = id
	if parent == 0 {
		loadScripts(buffer(6))
		run("create", rootScripts["create"], 0)
	}
}

//export proxy_on_vm_start
func onVMStart(id, size uint32) uint32 {
	contextID = id
	return run("start", rootScripts["start"], 1)
}

//export proxy_on_configure
func onConfigure(id, size uint32) uint32 {
	contextID = id
	loadScripts(buffer(7))
	return run("configure", rootScripts["configure"], 1)
}

//export proxy_on_tick
func onTick(id uint32) {
	contextID = id
	run("tick", rootScripts["tick"], 0)
}

//export proxy_on_queue_ready
func onQueueReady(id, token uint32) {
	contextID = id
	logLine("queue: ready " + number(token))
	run("queue", rootScripts["queue"], 0)
}

//export proxy_on_http_call_response
func onHTTPCallResponse(id, call, headers, body, trailers uint32) {
	contextID = id
	logLine("call: answered " + number(call) + " headers " + number(headers) + " body " + number(body))
	run("call", rootScripts["call"], 0)
}

//export proxy_on_request_headers
func onRequestHeaders(id, headers, end uint32) uint32 {
	contextID = id
	scripts := map[string]string{}
	for _, name := range streamCallbacks {
		var ptr, size uint32
		header := "x-on-" + name
		if proxyGetHeaderMapValue(0, data(header), uint32(len(header)), &ptr, &size) == 0 {
			scripts[name] = text(ptr, size)
		}
	}
	if len(scripts) == 0 {
		return 0
	}
	streamScripts[id] = scripts
	return run("request", scripts["request"], 0)
}

//export proxy_on_request_body
func onRequestBody(id, size, end uint32) uint32 {
	contextID = id
	return run("request-body", streamScripts[id]["request-body"], 0)
}

//export proxy_on_request_trailers
func onRequestTrailers(id, count uint32) uint32 {
	contextID = id
	return run("request-trailers", streamScripts[id]["request-trailers"], 0)
}

//export proxy_on_response_headers
func onResponseHeaders(id, headers, end uint32) uint32 {
	contextID = id
	return run("response", streamScripts[id]["response"], 0)
}

//export proxy_on_response_body
func onResponseBody(id, size, end uint32) uint32 {
	contextID = id
	return run("response-body", streamScripts[id]["response-body"], 0)
}

//export proxy_on_response_trailers
func onResponseTrailers(id, count uint32) uint32 {
	contextID = id
	return run("response-trailers", streamScripts[id]["response-trailers"], 0)
}

//export proxy_on_log
func onLog(id uint32) {
	contextID = id
	run("log", streamScripts[id]["log"], 0)
}

//export proxy_on_done
func onDone(id uint32) uint32 {
	contextID = id
	if scripts, ok := streamScripts[id]; ok {
		return run("done", scripts["done"], 1)
	}
	return run("root-done", rootScripts["done"], 1)
}

//export proxy_on_delete
func onDelete(id uint32) {
	contextID = id
	if scripts, ok := streamScripts[id]; ok {
		delete(streamScripts, id)
		run("delete", scripts["delete"], 0)
		return
	}
	run("root-delete", rootScripts["delete"], 0)
}
