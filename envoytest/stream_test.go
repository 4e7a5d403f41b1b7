package envoytest

import (
	"slices"
	"strings"
	"testing"
)

func TestCallbackOrder(t *testing.T) {
	h := start(t, Options{})
	all := []string{}
	for _, name := range []string{"request", "request-body", "request-trailers", "response", "response-body",
		"response-trailers", "log", "done", "delete"} {
		all = append(all, name, "buffer 0 0 9; buffer 1 1 9; header-get 1 t; header-get 3 t")
	}
	r := get(all...)
	r.Body, r.Trailers = []byte("abc"), [][2]string{{"t", "1"}}
	mark := h.logLength()
	s := h.Worker(0).Request(r)
	s.RespondWith(Response{Body: []byte("xyz"), Trailers: [][2]string{{"t", "2"}}})
	const no = "bad-argument"
	var want []string
	for _, step := range [][5]string{
		{"request", `ok ""`, `ok ""`, no, no},
		{"request-body", `ok "abc"`, `ok ""`, no, no},
		{"request-trailers", `ok ""`, `ok ""`, "ok 1", no},
		{"response", `ok ""`, `ok ""`, no, no},
		{"response-body", `ok ""`, `ok "yz"`, no, no},
		{"response-trailers", `ok ""`, `ok ""`, no, "ok 2"},
		{"log", `ok ""`, `ok ""`, "not-found", "ok 2"},
		{"done", `ok ""`, `ok ""`, no, no},
		{"delete", `ok ""`, `ok ""`, no, no},
	} {
		for i, command := range []string{"buffer 0 0 9", "buffer 1 1 9", "header-get 1 t", "header-get 3 t"} {
			want = append(want, step[0]+": "+command+" = "+step[i+1])
		}
	}
	equal(t, said(h, mark), want...)
	if r := s.Reply(); string(r.Body) != "xyz" || len(r.Trailers) != 1 || s.State() != Responded {
		t.Errorf("the client got %+v, the stream is %v", r, s.State())
	}
}

func TestLocalReply(t *testing.T) {
	grpc := [][2]string{{"content-type", "application/grpc"}}
	for _, c := range []struct {
		name    string
		headers [][2]string
		script  string
		want    string // headers as the response callback sees them
		body    string
		details string
		grpc    int32
	}{
		{"with body", nil, "reply 429 too_many__requests nope -1 retry-after=3",
			":status=429|retry-after=3|content-length=4|content-type=text/plain", "nope", "too_many__requests", -1},
		{"own content type and length", nil, "reply 429 - nope -1 Content-Type=text/html content-length=77 x=1 x=2",
			":status=429|content-type=text/html|x=1|x=2|content-length=4", "nope", "", -1},
		{"without body", nil, "reply 429 - - -1 content-type=text/html", ":status=429", "", "", -1},
		{"gRPC status to a plain request", nil, "reply 429 - - 8", ":status=429", "", "", 8},
		{"to a gRPC request", grpc, "reply 429 - n%o 8 x=1",
			":status=200|x=1|content-type=application/grpc|grpc-status=8|grpc-message=n%25o", "", "", 8},
		{"to a gRPC request, without a gRPC status", grpc, "reply 429 - - -1",
			":status=200|content-type=application/grpc|grpc-status=14", "", "", -1},
		{"an unknown gRPC status is none", nil, "reply 429 - - 17", ":status=429", "", "", -1},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := start(t, Options{})
			r := get("request", c.script, "response", "headers 2; header-add 2 x-z 1", "log", "property response/code")
			r.Headers = append(r.Headers, c.headers...)
			mark := h.logLength()
			s := h.Worker(0).Request(r)
			lines := results(said(h, mark))
			if s.State() != Replied || len(lines) != 4 {
				t.Fatalf("the stream is %v, the guest said %q", s.State(), lines)
			}
			if lines[1] != "ok "+c.want {
				t.Errorf("the response callback saw\n\t%s\nwant\n\t%s", lines[1], c.want)
			}
			reply := s.Reply()
			if string(reply.Body) != c.body || reply.Details != c.details || reply.GRPCStatus != c.grpc ||
				!reply.Local {
				t.Errorf("the client got %+v", reply)
			}
			if reply.Header("x-z") != "1" {
				t.Error("the response callback of a local reply cannot add a header")
			}
		})
	}
}

func TestLocalReplyComesAfterTheCallback(t *testing.T) {
	h := start(t, Options{})
	mark := h.logLength()
	h.Worker(0).Request(get("request", "reply 429 - - -1; log 2 after; return 0", "response", "log 2 response"))
	equal(t, said(h, mark)[1:], "after", "request: log 2 after = ok", "response", "response: log 2 response = ok")
}

func TestLocalReplyInsteadOfAResponse(t *testing.T) {
	h := start(t, Options{})
	s := h.Worker(0).Request(get("response", "reply 430 - d -1"))
	before := h.Stats()
	r := s.Respond(200, nil)
	if r == nil || r.Status != 430 || string(r.Body) != "d" || s.State() != Replied {
		t.Errorf("the client got %+v, the stream is %v", r, s.State())
	}
	if n := h.Stats().Since(before).Entries["proxy_on_response_headers"]; n != 1 {
		t.Errorf("the response callback ran %d times: a direct reply goes past it", n)
	}
}

func TestProblems(t *testing.T) {
	for _, c := range []struct {
		name, script, response, want string
		state                        State
	}{
		{"second local reply", "reply 429 - - -1; reply 430 - - -1", "", "a second local reply", Replied},
		{"second local reply from the response callback", "reply 429 - - -1", "reply 430 - - -1",
			"a second local reply", Replied},
		{"resumed inside its own callback", "resume 0; return 1", "", "resumed inside its own callback", Continued},
		{"another one answered in its callback", "effective 1; reply 429 - - -1", "", "does not go on with it", Paused},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := guest.New(Options{T: quiet{}})
			if err := h.Start(); err != nil {
				t.Fatal(err)
			}
			s := h.Worker(0).Request(get("request", c.script, "response", c.response))
			if p := h.Problems(); len(p) != 1 || !strings.Contains(p[0], c.want) {
				t.Errorf("problems: %q", p)
			}
			if s.State() != c.state {
				t.Errorf("the stream is %v", s.State())
			}
			if err := h.Close(); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("Close returned %v", err)
			}
		})
	}
	t.Run("upstream answers a paused request", func(t *testing.T) {
		h := start(t, Options{T: quiet{}})
		s := h.Worker(0).Request(get("request", "return 1"))
		if s.Respond(200, nil) != nil || len(h.Problems()) != 1 {
			t.Errorf("problems: %q", h.Problems())
		}
	})
	t.Run("resumed twice", func(t *testing.T) {
		h := start(t, Options{T: quiet{}, PluginConfig: []byte("configure: tick 10\ntick: eval do")})
		h.Worker(0).Request(get("request", "self s; return 1"))
		h.SetShared("do", []byte("effective @s; resume 0; resume 0"))
		h.Advance(10e6)
		if len(h.Problems()) != 1 {
			t.Errorf("problems: %q", h.Problems())
		}
	})
}

// A paused request is resumed by a tick of its own worker; the other VMs do not know the context.
func TestPauseAndResumeFromTick(t *testing.T) {
	h := start(t, Options{Workers: 2, PluginConfig: []byte("configure: tick 20\ntick: eval do")})
	h.Worker(1).Request(get()).Cancel() // so that the paused stream's id is not known to worker 0
	s := h.Worker(1).Request(get("request", "self s; header-get 0 :path; return 1", "response", "log 2 answered"))
	if s.State() != Paused {
		t.Fatalf("the stream is %v", s.State())
	}
	h.SetShared("do", []byte("effective @s; header-get 0 :path; resume 0; header-get 0 :path; log 2 still in the tick"))
	mark := h.logLength()
	h.Advance(20e6)
	if s.State() != Continued {
		t.Errorf("the stream is %v", s.State())
	}
	var last []string
	for _, l := range h.Logs()[mark:] {
		if l.VM == 1 {
			last = append(last, l.Text)
		} else if strings.Contains(l.Text, "effective") && !strings.HasSuffix(l.Text, "= bad-argument") {
			t.Errorf("VM %d knows the context: %s", l.VM, l.Text)
		}
	}
	equal(t, last, "tick: effective @s = ok", "tick: header-get 0 :path = ok /x?q=1", "tick: resume 0 = ok",
		"tick: header-get 0 :path = bad-argument", "still in the tick", "tick: log 2 still in the tick = ok")
	s.Respond(200, nil)
}

func TestReplyFromTick(t *testing.T) {
	h := start(t, Options{PluginConfig: []byte("configure: tick 20\ntick: eval do")})
	h.Worker(0).Request(get()) // makes the ids of worker and main thread differ
	s := h.Worker(0).Request(get("request", "self s; return 1", "response", "header-add 2 x 1"))
	h.SetShared("do", []byte("effective @s; reply 503 deadline - -1"))
	h.Advance(20e6)
	if r := s.Reply(); s.State() != Replied || r.Status != 503 || r.Header("x") != "1" || r.Details != "deadline" {
		t.Errorf("the stream is %v with %+v", s.State(), r)
	}
}

// An effective context that is gone is refused, and the context before stays in force: the next
// host calls act on the wrong stream.
func TestEffectiveContextOfADeadStream(t *testing.T) {
	h := start(t, Options{PluginConfig: []byte("configure: tick 20\ntick: eval do")})
	dead := h.Worker(0).Request(get("request", "self dead; return 1"))
	alive := h.Worker(0).Request(get("request", "self alive; header-add 0 x-name alive; return 1"))
	dead.Cancel()
	h.SetShared("do", []byte("effective @alive; effective @dead; header-get 0 x-name; effective 0; header-get "+
		"0 x-name"))
	mark := h.logLength()
	h.Advance(20e6)
	var lines []string
	for _, l := range h.Logs()[mark:] {
		if l.VM == 0 {
			lines = append(lines, l.Text)
		}
	}
	equal(t, results(lines), "ok", "bad-argument", "ok alive", "ok", "bad-argument")
	if alive.State() != Paused || dead.State() != Cancelled {
		t.Errorf("alive is %v, dead is %v", alive.State(), dead.State())
	}
}

func TestPauseResponse(t *testing.T) {
	h := start(t, Options{PluginConfig: []byte("configure: tick 20\ntick: eval do")})
	h.Worker(0).Request(get())
	s := h.Worker(0).Request(get("request", "self s", "response", "return 1"))
	if r := s.Respond(200, nil); r != nil || s.State() != ResponsePaused {
		t.Fatalf("the stream is %v, the client got %+v", s.State(), r)
	}
	h.SetShared("do", []byte("effective @s; header-add 2 late 1; resume 1"))
	h.Advance(20e6)
	if r := s.Reply(); s.State() != Responded || r.Header("late") != "1" {
		t.Errorf("the stream is %v with %+v", s.State(), r)
	}
}

// The body waits for paused headers, and the trailers for a paused body.
func TestPauseHoldsTheRestBack(t *testing.T) {
	h := start(t, Options{PluginConfig: []byte("configure: tick 20\ntick: eval do")})
	h.Worker(0).Request(get())
	r := get("request", "self s; return 1", "request-body", "return 1", "request-trailers", "return 1")
	r.Body, r.Trailers = []byte("b"), [][2]string{{"t", "1"}}
	s := h.Worker(0).Request(r)
	h.SetShared("do", []byte("effective @s; resume 0"))
	for _, want := range []callback{onRequestBody, onRequestTrailers} {
		before := h.Stats()
		h.Advance(20e6)
		if n := h.Stats().Since(before).Entries[callbackNames[want]]; n != 1 || s.State() != Paused {
			t.Errorf("%s ran %d times, the stream is %v", callbackNames[want], n, s.State())
		}
	}
	h.Advance(20e6)
	if s.State() != Continued {
		t.Errorf("the stream is %v", s.State())
	}
}

func TestCancelAndClose(t *testing.T) {
	for _, c := range []struct {
		name, script string
		cancel       bool
	}{{"the client goes away from a paused request", "return 1", true}, {"the filter closes the stream", "close 0",
		false}} {
		t.Run(c.name, func(t *testing.T) {
			h := start(t, Options{})
			s := h.Worker(0).Request(get("request", c.script, "log", "header-get 0 :method; header-get 2 :status",
				"done", "log 2 done", "delete", "log 2 gone"))
			mark := 0
			if c.cancel {
				mark = h.logLength()
				s.Cancel()
				s.Cancel()
			}
			if s.State() != Cancelled || s.Reply() != nil {
				t.Errorf("the stream is %v with %+v", s.State(), s.Reply())
			}
			lines := said(h, mark)
			equal(t, lines[len(lines)-6:], "log: header-get 0 :method = ok GET",
				"log: header-get 2 :status = not-found",
				"done", "done: log 2 done = ok", "gone", "delete: log 2 gone = ok")
		})
	}
}

func TestSetBuffer(t *testing.T) {
	h := start(t, Options{})
	r := get("request-body", "return 1")
	r.Body = []byte("abc")
	s := h.Worker(0).Request(r)
	v := s.context.vm
	v.current = s.context
	address, view, _ := v.alloc(2)
	copy(view, "XY")
	for _, c := range []struct {
		start, length uint64
		want          string
		st            status
	}{
		{0, 0, "XYabc", statusOK}, {0, 5, "XY", statusOK}, {0, 99, "XY", statusOK}, {2, 0, "XYXY", statusOK},
		{9, 0, "XYXYXY", statusOK},
		{1, 1, "XYXYXY", statusBadArgument}, {0, 1, "XYXYXY", statusBadArgument},
	} {
		st := v.abiSetBuffer([]uint64{bufferRequestBody, c.start, c.length, uint64(address), 2})
		if st != c.st || string(s.RequestBody()) != c.want {
			t.Errorf("at %d, %d: status %d and body %q, want %d and %q", c.start, c.length, st, s.RequestBody(), c.st,
				c.want)
		}
	}
	if st := v.abiSetBuffer([]uint64{bufferVMConfiguration, 0, 0, uint64(address), 2}); st != statusBadArgument {
		t.Errorf("the VM configuration was changed: status %d", st)
	}
	if st := v.abiSetBuffer([]uint64{bufferCallResponseBody, 0, 0, uint64(address), 2}); st != statusNotFound {
		t.Errorf("a call response that is not there: status %d", st)
	}
	if !slices.Equal(s.request.body, s.RequestBody()) {
		t.Error("RequestBody differs from the body")
	}
}
