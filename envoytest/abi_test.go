package envoytest

import (
	"encoding/binary"
	"fmt"
	"strings"
	"testing"
)

func TestMetrics(t *testing.T) {
	for _, c := range []struct {
		name, script string
		want         []string
	}{
		{"each definition has an id", "define 0 a; define 0 a; define 1 a; define 2 a; define 0 b; define 3 a",
			[]string{"ok 4", "ok 8", "ok 5", "ok 6", "ok 12", "bad-argument"}},
		{"one stat per name", "define 0 a; define 0 a; increment 4 2; increment 8 3; metric 4; metric 8",
			[]string{"ok 4", "ok 8", "ok", "ok", "ok 5", "ok 5"}},
		{"a counter only goes up", "define 0 a; increment 4 1; increment 4 0; increment 4 -1; metric 4; record 4 5; " +
			"metric 4",
			[]string{"ok 4", "ok", "bad-argument", "bad-argument", "ok 1", "ok", "ok 6"}},
		{"a gauge goes anywhere", "define 1 a; increment 5 3; increment 5 -1; increment 5 0; metric 5; record 5 9; " +
			"metric 5",
			[]string{"ok 5", "ok", "ok", "ok", "ok 2", "ok", "ok 9"}},
		{"a histogram is only recorded", "define 2 a; record 6 5; record 6 7; metric 6; increment 6 1",
			[]string{"ok 6", "ok", "ok", "bad-argument", "bad-argument"}},
		{"ids that are not there", "increment 400 1; record 400 1; metric 400; metric 3; increment 3 1; record 3 1",
			[]string{"not-found", "not-found", "not-found", "bad-argument", "bad-argument", "not-found"}},
	} {
		t.Run(c.name, func(t *testing.T) { equal(t, do(start(t, Options{}), 0, c.script), c.want...) })
	}
}

func TestMetricsAreTheProcesss(t *testing.T) {
	h := start(t, Options{Workers: 2})
	for worker := range 2 {
		do(h, worker, "define 0 hits; increment 4 2; define 1 level; record 5 7; define 2 size; record 6 5")
	}
	if n, ok := h.Metric("hits"); n != 4 || !ok {
		t.Errorf("hits: %d %v", n, ok)
	}
	if n, ok := h.Metric("level"); n != 7 || !ok {
		t.Errorf("level: %d %v", n, ok)
	}
	if count, sum, ok := h.Histogram("size"); count != 2 || sum != 10 || !ok {
		t.Errorf("size: %d %d %v", count, sum, ok)
	}
	if _, ok := h.Metric("nothing"); ok {
		t.Error("a metric that was never defined is there")
	}
	if _, _, ok := h.Histogram("nothing"); ok {
		t.Error("a histogram that was never defined is there")
	}
}

func TestProperties(t *testing.T) {
	opt := Options{
		RootID: "root", VMID: "vm", PluginName: "weir", NodeID: "node-1",
		Properties: map[string][]byte{Path("xds", "node", "cluster"): []byte("c"),
			Path("request", "id"): []byte("all")},
		PluginConfig: []byte("configure: property plugin_root_id; property plugin_vm_id; property plugin_name; " +
			"property xds/node/id; property xds/node/cluster; property source/address; property-set a b"),
	}
	h := start(t, opt)
	equal(t, results(said(h, 0))[:7], `ok "root"`, `ok "vm"`, `ok "weir"`, `ok "node-1"`, `ok "c"`, "not-found", "not-found")

	quote := func(n uint64) string {
		return fmt.Sprintf("ok %q", binary.LittleEndian.AppendUint64(nil, n))
	}
	r := get("request", "property source/address; property source/port; property request/path; property "+
		"request/url_path;"+
		"property request/host; property request/method; property request/id; property request/scheme; property "+
		"request/headers/x-b;"+
		"property request/headers/no; property response/code; property nonsense; property "+
		"metadata/filter_metadata/jwt/sub;"+
		"property empty; property /; property source/address/")
	r.Source = "[2001:db8::1]:443"
	r.Headers = append(r.Headers, [2]string{"x-b", "1"}, [2]string{"x-b", "2"})
	r.Properties = map[string][]byte{
		Path("metadata", "filter_metadata", "jwt", "sub"): []byte("alice"), Path("request", "id"): []byte("mine"),
		"empty": nil,
	}
	mark := h.logLength()
	h.Worker(0).Request(r).Cancel()
	equal(t, results(said(h, mark)), `ok "[2001:db8::1]:443"`, quote(443), `ok "/x?q=1"`, `ok "/x"`, `ok "a.example"`, `ok "GET"`,
		`ok "mine"`, "not-found", `ok "1,2"`, "not-found", "not-found", "not-found", `ok "alice"`, `ok ""`, "not-found", `ok "[2001:db8::1]:443"`)
	v := h.workers[0].current.vm
	if st := v.abiGetProperty([]uint64{0, 0, 0, 0}); st != statusSerializationFailure {
		t.Errorf("an empty path: status %d", st)
	}
}

func TestPropertiesOfTheResponse(t *testing.T) {
	h := start(t, Options{})
	mark := h.logLength()
	h.Worker(0).Request(get("log", "property response/code")).Respond(404, nil)
	equal(t, said(h, mark), fmt.Sprintf("log: property response/code = ok %q",
		binary.LittleEndian.AppendUint64(nil, 404)))
}

func TestFilterState(t *testing.T) {
	h := start(t, Options{})
	mark := h.logLength()
	s := h.Worker(0).Request(get("request",
		"property-set weir allowed; property weir; property filter_state/wasm.weir; property wasm.weir"))
	equal(t, results(said(h, mark)), "ok", `ok "allowed"`, `ok "allowed"`, "not-found")
	if value, ok := s.FilterState("wasm.weir"); string(value) != "allowed" || !ok {
		t.Errorf("filter state is %q, %v", value, ok)
	}
	if _, ok := s.FilterState("weir"); ok {
		t.Error("filter state is there without its prefix")
	}
}

func TestEnvironmentAndRandom(t *testing.T) {
	env := map[string]string{"TOKEN": "secret=1", "A": ""}
	same := func(seed uint64, worker int) []string {
		return do(start(t, Options{Env: env, Seed: seed, Workers: 2}), worker, "random 16; random 16")
	}
	equal(t, do(start(t, Options{Env: env}), 0, "env TOKEN; env A; env B"), "secret=1", "", "")
	first := same(1, 0)
	equal(t, same(1, 0), first...)
	if first[0] == first[1] || same(2, 0)[0] == first[0] || same(1, 1)[0] == first[0] {
		t.Error("random bytes repeat between calls, seeds or VMs")
	}
	equal(t, do(start(t, Options{}), 0, "random 65536; random 65537")[1:], "errno 28 hash 0")
}

func TestLogLevels(t *testing.T) {
	h := start(t, Options{})
	mark := h.logLength()
	h.Worker(0).Request(get("request", "log 0 a; log 5 b; log 6 c; print out"))
	var got []string
	for _, l := range h.Logs()[mark:] {
		if !strings.HasPrefix(l.Text, "request: log") {
			got = append(got, l.String())
		}
	}
	equal(t, got, "[0] trace: a", "[0] critical: b", "[0] info: out", "[0] info: request: print out = ok")
	equal(t, do(h, 0, "log 6 c"), "bad-argument")
}

// All that a guest can name wrongly is refused, and an address outside its memory never harms the
// host.
func TestWildAddresses(t *testing.T) {
	h := start(t, Options{})
	s := h.Worker(0).Request(get("request", "return 1"))
	v := s.context.vm
	v.current = s.context
	const wild = 0xFFFF_FFF0
	for i := range hostFuncs {
		f := &hostFuncs[i]
		for _, value := range []uint64{0, 1, 4, wild, 0xFFFF_FFFF} {
			args := make([]uint64, max(len(f.params), 1))
			for j := range args {
				args[j] = value
			}
			if strings.Contains(f.name, "grpc") || f.name == "proxy_continue_stream" ||
				f.name == "proxy_send_local_response" {
				continue // those act on the stream, or are problems by themselves
			}
			f.call(v, args)
		}
	}
	v.effective = 0
	a := []uint64{0, wild, 16, wild, 16, wild, 16, wild, wild, wild}
	for name, st := range map[string]status{
		"get header": v.abiGetHeader(a), "add header": v.abiAddHeader(a), "remove header": v.abiRemoveHeader(a),
		"set headers": v.abiSetHeaders(a),
		"headers":     v.abiGetHeaders(a), "size": v.abiGetHeaderSize(a), "log": v.abiLog(a), "call": v.abiHTTPCall(a),
		"reply":      v.abiSendLocalResponse(a),
		"shared get": v.abiGetSharedData(a[1:]), "shared set": v.abiSetSharedData(a[1:]),
		"property":     v.abiGetProperty(a[1:]),
		"property set": v.abiSetProperty(a[1:]), "metric": v.abiDefineMetric(a), "time": v.abiGetCurrentTime(a[1:]),
		"queue": v.abiRegisterQueue(a[1:]),
	} {
		if st != statusInvalidMemoryAccess {
			t.Errorf("%s: status %d", name, st)
		}
	}
	s.Cancel()
}

func TestSharedQueue(t *testing.T) {
	h := start(t, Options{Workers: 2, VMID: "vm"})
	in := func(worker int, f func(v *vm, at func(string) (uint64, uint64), out uint64)) {
		v := h.workers[worker].current.vm
		v.current = h.workers[worker].current.root
		out, _, _ := v.alloc(16)
		f(v, func(s string) (uint64, uint64) {
			ptr, view, _ := v.alloc(uint32(len(s)))
			copy(view, s)
			return uint64(ptr), uint64(len(s))
		}, uint64(out))
	}
	want := func(what string, got, want status) {
		t.Helper()
		if got != want {
			t.Errorf("%s: status %d, want %d", what, got, want)
		}
	}
	in(1, func(v *vm, at func(string) (uint64, uint64), out uint64) {
		ptr, size := at("jobs")
		want("resolve before", v.abiResolveQueue([]uint64{0, 0, ptr, size, out}), statusNotFound)
		want("register", v.abiRegisterQueue([]uint64{ptr, size, out}), statusOK)
	})
	in(0, func(v *vm, at func(string) (uint64, uint64), out uint64) {
		ptr, size := at("jobs")
		id, idSize := at("vm")
		want("resolve", v.abiResolveQueue([]uint64{id, idSize, ptr, size, out}), statusOK)
		token, _ := v.mem.ReadUint32Le(uint32(out))
		item, itemSize := at("item")
		want("enqueue", v.abiEnqueue([]uint64{uint64(token), item, itemSize}), statusOK)
		want("enqueue to nothing", v.abiEnqueue([]uint64{9, item, itemSize}), statusNotFound)
	})
	mark := h.logLength()
	h.Advance(0)
	equal(t, said(h, mark), "queue: ready 1")
	if vm := h.Logs()[mark].VM; vm != 1 {
		t.Errorf("VM %d was called for the item, want VM 1, which registered last", vm)
	}
	in(0, func(v *vm, at func(string) (uint64, uint64), out uint64) {
		want("dequeue", v.abiDequeue([]uint64{1, out, out + 4}), statusOK)
		ptr, _ := v.mem.ReadUint32Le(uint32(out))
		if got, _ := v.bytes(uint64(ptr), 4); string(got) != "item" {
			t.Errorf("dequeued %q", got)
		}
		want("dequeue again", v.abiDequeue([]uint64{1, out, out + 4}), statusEmpty)
		want("dequeue of nothing", v.abiDequeue([]uint64{9, out, out + 4}), statusNotFound)
	})
}

func TestGRPCIsAProblem(t *testing.T) {
	h := start(t, Options{T: quiet{}})
	if st := h.workers[0].current.vm.abiGRPC(nil); st != statusUnimplemented || len(h.Problems()) != 1 {
		t.Errorf("status %d, problems %q", st, h.Problems())
	}
}
