package conformance

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weir-proxy/weir/envoytest"
)

const (
	path      = "/a?q=1"
	authority = "example.org"
)

// exchange is a request with its scripts, given as callback and script in turn.
type exchange struct {
	name    string
	scripts []string
	more    [][2]string // headers that precede the scripts' headers
	rest    bool        // first wait for more than the back-off of reloads
}

// headers returns the headers of the request, without the request line. The last script makes the
// guest log that the stream was deleted.
func (c exchange) headers() [][2]string {
	headers := slices.Clone(c.more)
	for i := 0; i < len(c.scripts); i += 2 {
		headers = append(headers, [2]string{"x-on-" + c.scripts[i], c.scripts[i+1]})
	}
	return append(headers, [2]string{"x-on-delete", "log 2 end"})
}

func script(pairs ...string) []string { return pairs }

const (
	backOff     = 1200 * time.Millisecond // more than Envoy's second
	callTimeout = 100 * time.Millisecond  // of the call that times out
)

const (
	see = "header-get 0 :method; header-get 1 t; header-get 2 :status; header-get 3 t; headers 0; headers 1; " +
		"headers 2; headers 3; buffer 0 0 9; buffer 1 1 9"
	call = " :method=GET :path=/x :authority=a"
)

// exchanges run in this order in one process, so that ids and cas go on from one to the next.
var exchanges = []exchange{
	// Bodies are left out: HTTP/1 brings the end of one as a chunk of its own, which the model does
	// not.
	{name: "the data that each callback sees",
		scripts: script("request", see, "response", see, "log", see, "done", see)},
	{name: "shared data", scripts: script("request",
		"shared-get k; shared-set k 1 4294967295; shared-set k 2 4294967295; shared-get k; shared-set k 3 0;"+
			"shared-get k; shared-set k 4 1; shared-set k 4 2; shared-get k; shared-set e - 0; shared-get e; "+
			"shared-set e x 9; shared-add n; shared-add n")},
	{name: "repeated headers", more: [][2]string{{"X-B", "1"}, {"x-b", "2"}, {"x-api-key", "1"}, {"x-api-key", "2"},
		{"cookie", "1"}, {"cookie", "2"},
		{"x-forwarded-for", "1.1.1.1"}, {"x-forwarded-for", "2.2.2.2"}, {"authorization", "1"}, {"authorization", "2"},
		{"accept", "1"}, {"accept", "2"},
		{"user-agent", "1"}, {"user-agent", "2"}, {"content-type", "1"}, {"content-type", "2"}, {"origin", "1"},
		{"origin", "2"},
		{"referer", "1"}, {"referer", "2"}, {"cache-control", "1"}, {"cache-control", "2"}, {"accept-language", "1"},
		{"accept-language", "2"}},
		scripts: script("request", "headers 0; header-get 0 x-b; header-get 0 X-Forwarded-For; property "+
			"request/headers/x-b", "response", "headers 2")},
	{name: "changing headers", more: [][2]string{{"x-b", "1"}, {"x-c", "0"}, {"x-b", "2"}, {"user-agent", "u"}},
		scripts: script(
			"request", "header-replace 0 X-B 3; header-add 0 x-c 5; header-replace 0 :path /b; header-add 0 "+
				"user-agent v; headers 0; header-remove 0 X-C; header-get 0 x-c; headers 0",
			"response", "header-replace 2 x-a 9; header-add 2 vary c; header-add 2 set-cookie 3; header-remove 2 "+
				"nothing; headers 2; header-add 0 a b")},
	{name: "local reply", scripts: script("request",
		"reply 429 too_many__requests nope -1 x-y=1 Content-Type=text/html content-length=77",
		"response", "headers 2; header-add 2 x-z 1; headers 0", "response-body", "buffer 1 0 9", "log",
		"headers 2; property response/code; property response/code_details")},
	{name: "local reply, no frills", scripts: script("request", "reply 429 - b -1", "response", "headers 2")},
	{name: "local reply without a body",
		scripts: script("request", "reply 429 - - -1 content-type=text/html", "response", "headers 2")},
	{name: "local reply to gRPC", more: [][2]string{{"content-type", "application/grpc"}},
		scripts: script("request", "reply 429 - n%o 8 x-y=1", "response", "headers 2")},
	{name: "local reply to gRPC without a code", more: [][2]string{{"content-type", "application/grpc"}},
		scripts: script("request", "reply 429 - - -1", "response", "headers 2")},
	{name: "local reply instead of a response",
		scripts: script("response", "headers 2; reply 418 - d -1", "response-body", "log 2 never", "log", "headers 2")},
	{name: "closed stream", scripts: script("request", "close 0", "response", "log 2 never", "log",
		"headers 2; property response/code")},
	{name: "metrics", scripts: script("request",
		"define 0 c1; define 0 c1; define 1 g1; define 2 h1; define 3 x; increment 4 2; increment 8 3; metric 4; "+
			"increment 4 0; increment 4 -1;"+
			"increment 5 3; increment 5 -1; increment 5 0; metric 5; record 5 9; metric 5; record 6 5; metric 6; "+
			"increment 6 1; record 4 5; metric 4;"+
			"increment 400 1; record 400 1; metric 400; metric 3; increment 3 1; record 3 1")},
	{name: "properties", scripts: script("request",
		"property-set foo bar; property foo; property filter_state/wasm.foo; property wasm.foo; property "+
			"xds/node/id; property plugin_name;"+
			"property plugin_root_id; property plugin_vm_id; property request/path; property request/url_path; "+
			"property request/host; property request/method;"+
			"property nope; property request/nope; property response/code; property request/headers/nope; property /",
		"log", "property response/code; property foo")},
	{name: "statuses", scripts: script("request",
		"clock 2; random 65537; log 6 x; done; resume 2; resume 3; resume 4; close 4; effective 0; effective 12345; "+
			"headers 6; headers 9;"+
			"header-get 6 x; header-get 9 x; header-get 4 x; header-add 6 a b; headers-set 2 a=b; header-remove 1 x; "+
			"buffer 0 0 9; buffer 1 0 9; buffer 4 0 9; buffer 5 0 9; buffer 6 0 9;"+
			"buffer 7 0 9; buffer 8 0 9; buffer 9 0 9; self me")},
	{name: "allocation", scripts: script("request",
		"in-alloc log; shared-get k; in-alloc clock; shared-get k; in-alloc null; shared-get k; shared-get k")},
	{name: "call", scripts: script("request", "call up 1000"+call)},
	{name: "calls that cannot be",
		scripts: script("request", "call up 1000 :path=/ :authority=a; call up 1000 :method=GET :authority=a; call "+
			"up 1000 :method=GET :path=/;"+
			"call other 1000"+call+"; call up 4294967295"+call+"; call nohost 1000"+call)},
	{name: "call that cannot connect", scripts: script("request", "call dead 1000"+call)},
	{name: "call that times out", scripts: script("request", "call up 100 :method=GET :path=/slow :authority=a")},
	{name: "trap", rest: true, scripts: script("request", "in-alloc time; shared-get k; log 2 still here", "log",
		"log 2 never")},
	{name: "after the trap", scripts: script("request", "shared-get k; self me; log 2 in a new VM")},
}

func TestModelConformsToEnvoy(t *testing.T) {
	wasm := filepath.Join(t.TempDir(), "guest.wasm")
	build := exec.Command("../../wasm-build.sh", "-o", wasm, "--keep-all-exports", "../testdata/guest")
	if output, err := build.CombinedOutput(); err != nil {
		t.Fatalf("building the guest: %v\n%s", err, output)
	}
	model := startModel(t, wasm)
	proxy := startEnvoy(t, wasm)
	for _, c := range exchanges {
		t.Run(c.name, func(t *testing.T) {
			if c.rest {
				model.h.Advance(backOff)
				time.Sleep(backOff)
			}
			status, body, want := model.do(c)
			gotStatus, gotBody := proxy.do(t, c)
			got := proxy.await(t, len(want))
			if status != gotStatus || body != gotBody {
				t.Errorf("the client got %d %q from Envoy, %d %q from the model", gotStatus, gotBody, status, body)
			}
			gotCalls, gotStream := split(stable(got))
			wantCalls, wantStream := split(stable(want))
			compare(t, gotCalls, wantCalls)
			compare(t, gotStream, wantStream)
		})
	}
}

// model is the same setting on the model.
type model struct {
	h    *envoytest.Host
	seen int
}

func startModel(t *testing.T, wasm string) *model {
	t.Helper()
	code, err := os.ReadFile(wasm)
	if err != nil {
		t.Fatal(err)
	}
	h, err := envoytest.New(code, envoytest.Options{
		T: t, PluginName: "guest", RootID: rootID, VMID: vmID, NodeID: nodeID, PluginConfig: []byte(pluginConfig),
		FailurePolicy: envoytest.FailReload, Clusters: []string{"up", "dead", "nohost"},
		Calls: func(c *envoytest.Call) {
			switch {
			case c.Cluster == "dead":
				c.FailConnection(0)
			case c.Cluster == "nohost":
				c.FailNow()
			case c.Header(":path") != "/slow":
				c.Respond(0, 200, upstreamHeaders, []byte(upstreamBody))
			}
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { h.Close() })
	if err := h.Start(); err != nil {
		t.Fatal(err)
	}
	return &model{h: h, seen: len(h.Logs())}
}

// do sends an exchange. It returns the client's answer, with status 0 if there is none, and the
// guest's log.
func (m *model) do(c exchange) (status int, body string, lines []string) {
	r := envoytest.Request{Headers: append([][2]string{
		{":authority", authority}, {":path", path}, {":method", "GET"}, {":scheme", "http"},
	}, c.headers()...)}
	s := m.h.Worker(0).Request(r)
	if s.State() == envoytest.Continued {
		s.RespondWith(envoytest.Response{Headers: upstreamHeaders, Body: []byte(upstreamBody)})
	}
	m.h.Advance(callTimeout)
	if reply := s.Reply(); reply != nil {
		status, body = reply.Status, string(reply.Body)
	}
	logs := m.h.Logs()
	for _, l := range logs[m.seen:] {
		text := l.Text
		if function, _, ok := strings.Cut(text, " failed: "); ok && strings.HasPrefix(text, "Function: ") {
			text = function + " failed"
		}
		lines = append(lines, text)
	}
	m.seen = len(logs)
	return status, body, lines
}

// volatile are headers that only a real proxy adds.
var volatile = []string{"x-forwarded-proto", "x-envoy-upstream-service-time", "x-envoy-expected-rq-timeout-ms", "date",
	"server"}

// stable removes from logged header blocks the headers that differ from run to run or that the
// model does not have.
func stable(lines []string) []string {
	var result []string
	for _, line := range lines {
		command, pairs, ok := strings.Cut(line, " = ok ")
		if ok && strings.Contains(command, " headers ") {
			kept := slices.DeleteFunc(strings.Split(pairs, "|"), func(pair string) bool {
				name, _, _ := strings.Cut(pair, "=")
				return slices.Contains(volatile, name)
			})
			line = command + " = ok " + strings.Join(kept, "|")
		}
		if strings.Contains(line, "answered") {
			fields := strings.Fields(line) // the number of headers depends on the volatile headers
			line = strings.Join(slices.Delete(fields, 4, 5), " ")
		}
		result = append(result, line)
	}
	return result
}

// split parts the lines of call callbacks from the rest: whether a call is answered before or after
// its stream has ended is a matter of speed.
func split(lines []string) (calls, stream []string) {
	for _, line := range lines {
		if strings.HasPrefix(line, "call: ") {
			calls = append(calls, line)
		} else {
			stream = append(stream, line)
		}
	}
	return calls, stream
}

func compare(t *testing.T, envoy, model []string) {
	t.Helper()
	for i := range max(len(envoy), len(model)) {
		var a, b string
		if i < len(envoy) {
			a = envoy[i]
		}
		if i < len(model) {
			b = model[i]
		}
		if a != b {
			t.Errorf("line %d\n\tEnvoy: %s\n\tmodel: %s", i, a, b)
		}
	}
}
