package envoytest

import (
	"testing"
	"time"
)

const (
	callUp  = "call up 1000 :method=GET :path=/lease :authority=cp"
	watched = "configure: log 2 ready\ncall: headers 6; header-get 6 :status; buffer 4 0 20; headers 7"
)

// after starts a host whose guest logs each answer in its call callback. It makes one call from
// worker 0, lets d pass, and returns the log.
func after(t *testing.T, script string, hook func(*Call), d time.Duration) []string {
	h := start(t, Options{PluginConfig: []byte(watched), Calls: hook})
	h.Worker(0).Request(get("request", script)).Cancel()
	mark := h.logLength()
	h.Advance(d)
	return said(h, mark)
}

func TestCallOutcomes(t *testing.T) {
	for _, c := range []struct {
		name string
		hook func(*Call)
		due  time.Duration
		want []string
	}{
		{"answer", func(c *Call) { c.Respond(5*time.Millisecond, 200, [][2]string{{"X-A", "1"}}, []byte("body")) },
			5 * time.Millisecond,
			[]string{"call: answered 4 headers 2 body 4", "call: headers 6 = ok :status=200|x-a=1",
				"call: header-get 6 :status = ok 200", `call: buffer 4 0 20 = ok "body"`, "call: headers 7 = ok "}},
		{"timeout", nil, time.Second,
			[]string{"call: answered 4 headers 3 body 24",
				"call: headers 6 = ok :status=504|content-length=24|content-type=text/plain",
				"call: header-get 6 :status = ok 504", `call: buffer 4 0 20 = ok "upstream request tim"`, "call: headers 7 = ok "}},
		{"an answer after the timeout", func(c *Call) { c.Respond(time.Second+1, 200, nil, nil) }, time.Second,
			[]string{"call: answered 4 headers 3 body 24",
				"call: headers 6 = ok :status=504|content-length=24|content-type=text/plain",
				"call: header-get 6 :status = ok 504", `call: buffer 4 0 20 = ok "upstream request tim"`, "call: headers 7 = ok "}},
		{"connection failure", func(c *Call) { c.FailConnection(time.Millisecond) }, time.Millisecond,
			[]string{"call: answered 4 headers 3 body 98",
				"call: headers 6 = ok :status=503|content-length=98|content-type=text/plain",
				"call: header-get 6 :status = ok 503", `call: buffer 4 0 20 = ok "upstream connect err"`, "call: headers 7 = ok "}},
		{"reset", func(c *Call) { c.Reset(0) }, 0,
			[]string{"call: answered 4 headers 0 body 0", "call: headers 6 = ok ",
				"call: header-get 6 :status = bad-argument", "call: buffer 4 0 20 = not-found",
				"call: headers 7 = ok "}},
		{"only the first outcome counts", func(c *Call) { c.Reset(0); c.Respond(0, 200, nil, nil) }, 0,
			[]string{"call: answered 4 headers 0 body 0", "call: headers 6 = ok ",
				"call: header-get 6 :status = bad-argument", "call: buffer 4 0 20 = not-found",
				"call: headers 7 = ok "}},
	} {
		t.Run(c.name, func(t *testing.T) {
			equal(t, after(t, callUp, c.hook, c.due), c.want...)
			if c.due > 0 {
				equal(t, after(t, callUp, c.hook, c.due-1))
			}
		})
	}
}

func TestOneCallHasOneOutcome(t *testing.T) {
	lines := after(t, callUp, func(c *Call) { c.Respond(10*time.Millisecond, 200, nil, nil) }, time.Hour)
	if len(lines) != 5 {
		t.Errorf("the guest said %q", lines)
	}
}

func TestDispatchStatus(t *testing.T) {
	h := start(t, Options{Clusters: []string{"up"}, Calls: func(c *Call) {
		if c.Header("x-fail") != "" {
			c.FailNow()
		}
	}})
	equal(t, do(h, 0, "call up 1000 :path=/ :authority=a; call up 1000 :method=GET :authority=a; call up 1000 "+
		":method=GET :path=/;"+
		"call other 1000 :method=GET :path=/ :authority=a; call up 2147483648 :method=GET :path=/ :authority=a;"+
		"call up 1000 :method=GET :path=/ :authority=a; call up 1000 :method=GET :path=/ :authority=a x-fail=1;"+
		"call up 1000 :method=GET :path=/ :authority="),
		"bad-argument 0", "bad-argument 0", "bad-argument 0", "bad-argument 0", "bad-argument 0",
		"ok 4", "internal-failure 0", "ok 12")
	before := h.Stats()
	h.Advance(time.Hour)
	if n := h.Stats().Since(before).Entries["proxy_on_http_call_response"]; n != 2 {
		t.Errorf("%d callbacks, want 2: a failed dispatch has none", n)
	}
	h.SetClusters("other")
	equal(t, do(h, 0, callUp), "bad-argument 0")
}

func TestCallWithoutTimeoutWaits(t *testing.T) {
	h := start(t, Options{PluginConfig: []byte(watched)})
	do(h, 0, "call up 0 :method=GET :path=/ :authority=a")
	h.Advance(24 * time.Hour)
	calls := h.Calls()
	if len(calls) != 1 || calls[0].Timeout != 0 {
		t.Fatalf("pending: %+v", calls)
	}
	c := calls[0]
	if c.VM != 0 || c.Cluster != "up" || c.Header(":path") != "/" || string(c.Body) != "ping" ||
		c.Header("content-length") != "4" {
		t.Errorf("the call is %+v", c)
	}
	before := h.Stats()
	c.Respond(0, 200, nil, nil)
	if n := h.Stats().Since(before).Entries["proxy_on_http_call_response"]; n != 0 {
		t.Error("the call was answered outside Advance")
	}
	h.Advance(0)
	if n := h.Stats().Since(before).Entries["proxy_on_http_call_response"]; n != 1 || len(h.Calls()) != 0 {
		t.Errorf("%d callbacks, %d calls left", n, len(h.Calls()))
	}
}

func TestFailNowBelongsIntoTheHook(t *testing.T) {
	h := start(t, Options{T: quiet{}})
	do(h, 0, callUp)
	h.Calls()[0].FailNow()
	if len(h.Problems()) != 1 {
		t.Errorf("problems: %q", h.Problems())
	}
}

// A call belongs to the root context: it outlives its stream, it is not delivered after the root
// context has gone, and ids are unique in a VM.
func TestCallsBelongToTheRootContext(t *testing.T) {
	h := start(t, Options{PluginConfig: []byte("call: effective 1; header-get 6 :status")})
	s := h.Worker(0).Request(get("request", callUp+";"+callUp))
	s.Cancel()
	calls := h.Calls()
	if len(calls) != 2 || calls[0].ID == calls[1].ID {
		t.Fatalf("calls: %+v", calls)
	}
	calls[0].Respond(0, 200, nil, nil)
	mark := h.logLength()
	h.Advance(0)
	equal(t, said(h, mark), "call: answered 4 headers 1 body 0", "call: effective 1 = ok",
		"call: header-get 6 :status = ok 200")
	if err := h.UpdatePlugin([]byte("configure: log 2 new")); err != nil {
		t.Fatal(err)
	}
	if n := len(h.Calls()); n != 0 {
		t.Errorf("%d calls of a root context that is gone", n)
	}
	before := h.Stats()
	calls[1].Respond(0, 200, nil, nil)
	h.Advance(time.Hour)
	if n := h.Stats().Since(before).Entries["proxy_on_http_call_response"]; n != 0 {
		t.Error("a call was delivered to a root context that is gone")
	}
}

func TestCallsFromTicks(t *testing.T) {
	h := start(t, Options{Workers: 2, PluginConfig: []byte("configure: tick 100\ntick: " + callUp)})
	h.Advance(100 * time.Millisecond)
	var vms []int
	for _, c := range h.Calls() {
		vms = append(vms, c.VM)
		if c.At != h.Monotonic() {
			t.Errorf("the call is of %v, it is %v", c.At, h.Monotonic())
		}
	}
	if len(vms) != 3 || vms[0] != Main || vms[1] != 0 || vms[2] != 1 {
		t.Errorf("calls of VMs %v", vms)
	}
}

func TestStatusOfAResetCall(t *testing.T) {
	h := start(t, Options{})
	do(h, 0, callUp)
	root := h.Calls()[0].root
	v := root.vm
	v.current = root
	address, _, _ := v.alloc(12)
	see := func() (code uint32, size uint32) {
		a := uint64(address)
		if st := v.abiGetStatus([]uint64{a, a + 4, a + 8}); st != statusOK {
			t.Errorf("status %d", st)
		}
		code, _ = v.mem.ReadUint32Le(address)
		size, _ = v.mem.ReadUint32Le(address + 8)
		return code, size
	}
	if code, size := see(); code != 0 || size != 0 {
		t.Errorf("code %d, %d bytes", code, size)
	}
	root.failure = "reset"
	if code, size := see(); code != 11 || size != 5 {
		t.Errorf("code %d, %d bytes of a reset call", code, size)
	}
}
