package conformance

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

const (
	vmID   = "conformance-vm"
	rootID = "conformance-root"
	nodeID = "conformance-node"
	// patience is enough for an Envoy of another architecture, in an emulator.
	patience = 2 * time.Minute
	// pluginConfig makes the guest log the answer of each call.
	pluginConfig = "configure: property plugin_root_id\n" +
		"call: headers 6; header-get 6 :status; buffer 4 0 200; header-get 7 x; headers 0"
)

// upstreamHeaders and upstreamBody are the upstream's answer to each request.
var upstreamHeaders = [][2]string{{"content-length", "5"}, {"x-a", "1"}, {"x-a", "2"}, {"vary", "a"}, {"vary", "b"},
	{"set-cookie", "1"}, {"set-cookie", "2"}}

const upstreamBody = "hello"

// envoy is a running Envoy with the guest in it.
type envoy struct {
	address string
	log     string // file with all its output
	seen    int    // lines of the log that were read
}

// startEnvoy starts an Envoy with one worker; it ends with the test.
func startEnvoy(t *testing.T, wasm string) *envoy {
	t.Helper()
	binary := os.Getenv("WEIR_ENVOY") // of another version
	if binary == "" {
		if out, err := exec.Command("../../tools/setup.sh", "envoy").CombinedOutput(); err != nil {
			t.Fatalf("tools/setup.sh envoy: %v\n%s", err, out)
		}
		binary = filepath.Join(cacheDir(t), "bin", "envoy")
	}
	dir := t.TempDir()
	e := &envoy{address: freeAddress(t), log: filepath.Join(dir, "envoy.log")}
	config := filepath.Join(dir, "envoy.yaml")
	if err := os.WriteFile(config, []byte(envoyConfig(t, e.address, startUpstream(t), wasm)), 0o644); err != nil {
		t.Fatal(err)
	}
	output, err := os.Create(e.log)
	if err != nil {
		t.Fatal(err)
	}
	defer output.Close()
	cmd := exec.Command(binary, "-c", config, "--concurrency", "1", "--use-dynamic-base-id",
		"-l", "warn", "--component-log-level", "wasm:info", "--log-format", "%v")
	cmd.Stdout, cmd.Stderr = output, output
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
		if t.Failed() {
			log, _ := os.ReadFile(e.log)
			t.Logf("Envoy's log:\n%s", log)
		}
	})
	e.await(t, 3) // canary, main thread and worker are configured
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); {
		if conn, err := net.Dial("tcp", e.address); err == nil {
			conn.Close()
			return e
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatal("Envoy does not listen")
	return nil
}

func cacheDir(t *testing.T) string {
	t.Helper()
	if dir := os.Getenv("WEIR_CACHE"); dir != "" {
		return dir
	}
	base := os.Getenv("XDG_CACHE_HOME")
	if base == "" {
		home, err := os.UserHomeDir()
		if err != nil {
			t.Fatal(err)
		}
		base = filepath.Join(home, ".cache")
	}
	return filepath.Join(base, "weir")
}

func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// startUpstream answers every request with upstreamHeaders and upstreamBody, to the letter; a path
// with "slow" it never answers.
func startUpstream(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	answer := "HTTP/1.1 200 OK\r\n"
	for _, h := range upstreamHeaders {
		answer += h[0] + ": " + h[1] + "\r\n"
	}
	answer += "\r\n" + upstreamBody
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				for in := bufio.NewReader(conn); ; {
					r, err := http.ReadRequest(in)
					if err != nil {
						return
					}
					io.Copy(io.Discard, r.Body)
					if !strings.Contains(r.URL.Path, "slow") {
						io.WriteString(conn, answer)
					}
				}
			}()
		}
	}()
	return l.Addr().String()
}

func envoyConfig(t *testing.T, listen, upstream, wasm string) string {
	t.Helper()
	address := func(a string) string {
		host, port, err := net.SplitHostPort(a)
		if err != nil {
			t.Fatal(err)
		}
		return fmt.Sprintf("{socket_address: {address: %s, port_value: %s}}", host, port)
	}
	cluster := func(name, endpoints string) string {
		return fmt.Sprintf("\n  - {name: %s, connect_timeout: 1s, type: STATIC, load_assignment: {cluster_name: %s, "+
			"endpoints: [%s]}}",
			name, name, endpoints)
	}
	endpoint := func(a string) string { return "{lb_endpoints: [{endpoint: {address: " + address(a) + "}}]}" }
	return fmt.Sprintf(`
node: {id: %s, cluster: c}
static_resources:
  listeners:
  - address: %s
    filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: h
          generate_request_id: false
          route_config: {virtual_hosts: [{name: v, domains: ["*"], routes: [{match: {prefix: "/"}, route: {cluster: up}}]}]}
          http_filters:
          - name: wasm
            typed_config:
              "@type": type.googleapis.com/envoy.extensions.filters.http.wasm.v3.Wasm
              config:
                name: guest
                root_id: %s
                failure_policy: FAIL_RELOAD
                configuration: {"@type": type.googleapis.com/google.protobuf.StringValue, value: %q}
                vm_config: {vm_id: %s, runtime: envoy.wasm.runtime.v8, code: {local: {filename: %s}}}
          - name: router
            typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}
  clusters:`, nodeID, address(listen), rootID, pluginConfig, vmID, wasm) +
		cluster("up", endpoint(upstream)) + cluster("dead", endpoint(freeAddress(t))) + cluster("nohost", "") + "\n"
}

// await returns the lines that guests have logged since the last call, as soon as there are at
// least n.
func (e *envoy) await(t *testing.T, n int) []string {
	t.Helper()
	for deadline := time.Now().Add(patience); ; time.Sleep(5 * time.Millisecond) {
		lines := e.lines(t)
		if len(lines)-e.seen >= n || time.Now().After(deadline) {
			fresh := lines[e.seen:]
			e.seen = len(lines)
			return fresh
		}
	}
}

// older shortens the text about a refused connection, and its length, to the text of Envoy before
// 1.38.
var older = strings.NewReplacer(
	", transport failure reason: delayed connect error: Connection refused", "",
	" body 167", " body 98", "content-length=167", "content-length=98",
)

// lines returns the log lines of guests, and for a trap the function that failed.
func (e *envoy) lines(t *testing.T) []string {
	t.Helper()
	file, err := os.ReadFile(e.log)
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	for line := range strings.Lines(string(file)) {
		// The prefix names plugin, root and VM id, none of them if the VM's own context speaks.
		if _, text, ok := strings.Cut(line, ": "); ok && strings.HasPrefix(line, "wasm log") {
			lines = append(lines, older.Replace(strings.TrimSuffix(text, "\n")))
		} else if function, _, ok := strings.Cut(line, " failed: "); ok && strings.HasPrefix(line, "Function: ") {
			lines = append(lines, function+" failed")
		}
	}
	return lines
}

// do sends a request, line by line, and returns the status and the body of the answer. The status
// is 0 if the connection was closed without an answer.
func (e *envoy) do(t *testing.T, c exchange) (int, string) {
	t.Helper()
	conn, err := net.Dial("tcp", e.address)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(patience))
	var b strings.Builder
	fmt.Fprintf(&b, "GET %s HTTP/1.1\r\nHost: %s\r\n", path, authority)
	for _, h := range c.headers() {
		fmt.Fprintf(&b, "%s: %s\r\n", h[0], h[1])
	}
	b.WriteString("\r\n")
	if _, err := io.WriteString(conn, b.String()); err != nil {
		t.Fatal(err)
	}
	r, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return 0, ""
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	return r.StatusCode, string(body)
}
