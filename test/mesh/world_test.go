// Package mesh runs the built filter and control plane in real meshes: under istiod with a real API
// server of Kubernetes, and under Envoy Gateway. `make test-mesh` builds all of these and runs it;
// it is not part of `make test`.
package mesh

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weir-proxy/weir/test/support/kubetest"
	"github.com/weir-proxy/weir/tools/stack"
)

const (
	repository = "../.."
	// patience bounds every wait. Others may use the machine, too.
	patience   = time.Minute
	grace      = 3 * time.Second
	adminToken = "the-administrator-of-the-tests"
	nodeToken  = "the-envoys-of-the-tests"
	// quota and requests are the numbers of all tests: no token comes back within the window.
	quota    = 100
	requests = 150
)

// within bounds a step of a test.
func within(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

// show prints the last output of a process, if the test has failed.
func show(t *testing.T, p *stack.Process) {
	if t.Failed() {
		t.Logf("%s wrote at last:\n%s\n%s", p.Name, p.Stdout.Tail(20), p.Stderr.Tail(40))
	}
}

// module returns the path of the filter that is built for the host.
func module(t *testing.T) string {
	t.Helper()
	path, err := filepath.Abs(host.File(repository + "/build/weir.wasm"))
	if err == nil {
		_, err = os.Stat(path)
	}
	if err != nil {
		t.Fatalf("%v: run `make %s`", err, host.Target())
	}
	return path
}

// upstream returns a service behind the proxies of a test.
func upstream(t *testing.T) *stack.Upstream {
	t.Helper()
	u, err := stack.StartUpstream(nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(u.Stop)
	return u
}

// controlPlane runs `weir serve` with a policy set.
func controlPlane(t *testing.T, policies string) *stack.ControlPlane {
	t.Helper()
	c, err := stack.StartControlPlane(within(t), stack.ControlPlaneOptions{
		Binary: repository + "/build/weir", Port: kubetest.FreePort(t), DataDir: t.TempDir(),
		AdminToken: adminToken, NodeToken: nodeToken,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Stop(); show(t, c.Process) })
	if _, err := c.Apply(within(t), []byte(policies)); err != nil {
		t.Fatal(err)
	}
	return c
}

// leased returns a policy set whose only limit counts all requests together.
func leased(name string, quota int) string {
	return fmt.Sprintf("version: weir/v1\npolicies:\n"+
		"  - {name: %s, partition: [], limit: {quota: %d, window: 1h}, mode: leased, on_failure: "+
		"[allow]}\n", name, quota)
}

// inline returns the same limit in the configuration of a plugin.
func inline(name string, quota int) string {
	return fmt.Sprintf("{policyset: {version: weir/v1, policies: [{name: %s, partition: [], "+
		"limit: {quota: %d, window: 1h}, mode: local}]}}", name, quota)
}

// client makes a connection for each request: a changed listener serves new connections alone.
var client = &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}

// answer is the part of a response that tests look at.
type answer struct {
	status int
	header http.Header
	body   string
}

// policy returns the first policy that the answer names, empty if there is none.
func (a answer) policy() string {
	name, _, _ := strings.Cut(a.header.Get("Ratelimit-Policy"), ";")
	return strings.Trim(name, `"`)
}

func ask(url string, header ...string) (answer, error) {
	request, err := http.NewRequest(http.MethodGet, url, nil)
	if err != nil {
		return answer{}, err
	}
	for i := 0; i+1 < len(header); i += 2 {
		request.Header.Set(header[i], header[i+1])
	}
	response, err := client.Do(request)
	if err != nil {
		return answer{}, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	return answer{response.StatusCode, response.Header, string(body)}, err
}

// counts sends requests one after the other, and counts the answers by status.
func counts(t *testing.T, n int, url string, header ...string) map[int]int {
	t.Helper()
	statuses := map[int]int{}
	for range n {
		a, err := ask(url, header...)
		if err != nil {
			t.Fatal(err)
		}
		statuses[a.status]++
	}
	return statuses
}

// The ends of a problem's type.
const (
	quotaExceeded = `#quota-exceeded"`
	// reducedCapacity: a call for a token came too late, as on a busy machine.
	reducedCapacity = `#temporary-reduced-capacity"`
)

// limits checks that exactly `pass` of the requests pass, and that the quota refuses all other
// requests.
func limits(t *testing.T, url, policy string, pass int, header ...string) {
	t.Helper()
	if passed := passes(t, url, policy, []string{quotaExceeded}, header...); passed != pass {
		t.Errorf("%s: %d of %d passed, want %d", policy, passed, requests, pass)
	}
}

// passes counts the requests that pass, and checks that the others get a 429 of the policy, with a
// problem of one of these types.
func passes(t *testing.T, url, policy string, problems []string, header ...string) (passed int) {
	t.Helper()
	for i := range requests {
		a, err := ask(url, header...)
		if err != nil {
			t.Fatal(err)
		}
		switch {
		case a.status == http.StatusOK:
			passed++
		case a.status != http.StatusTooManyRequests || a.policy() != policy || a.header.Get("Retry-After") == "" ||
			!slices.ContainsFunc(problems, func(end string) bool { return strings.Contains(a.body, end) }):
			t.Fatalf("request %d: %d %v %s, want a 429 of %s", i, a.status, a.header, a.body, policy)
		}
	}
	return passed
}

// awaitAnswer asks until an answer is as wanted. Each of these requests counts where a limit is.
func awaitAnswer(t *testing.T, what, url string, wanted func(answer) bool, header ...string) {
	t.Helper()
	err := stack.Await(within(t), what, func(context.Context) error {
		a, err := ask(url, header...)
		if err == nil && !wanted(a) {
			err = fmt.Errorf("it answers %d %v %.200s", a.status, a.header, a.body)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// awaitNode waits until a node of the control plane whose id begins so has applied its policies.
func awaitNode(t *testing.T, c *stack.ControlPlane, id string) {
	t.Helper()
	awaitNodes(t, c, id, 1)
}

// awaitNodes waits until the given number of nodes whose ids begin with id have applied their
// policies. Each plugin with its own name is a node.
func awaitNodes(t *testing.T, c *stack.ControlPlane, id string, number int) {
	t.Helper()
	err := stack.Await(within(t), fmt.Sprintf("%d nodes %s", number, id), func(ctx context.Context) error {
		nodes, err := c.Nodes(ctx)
		if err != nil {
			return err
		}
		applied := 0
		for _, n := range nodes {
			if strings.HasPrefix(n.ID, id) && n.Applied > 0 {
				applied++
			}
		}
		if applied < number {
			return fmt.Errorf("there are %+v", nodes)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// proxy is an Envoy whose configuration comes from a mesh.
type proxy struct {
	*stack.Process
	// port is where requests come in.
	port int
	// admin returns the port of the administration.
	admin func() (int, error)
	// crashes is set where a module is meant to.
	crashes bool
	// stopped is set where a test ends the process itself.
	stopped bool
}

func (p *proxy) url(path string) string { return fmt.Sprintf("http://127.0.0.1:%d%s", p.port, path) }

// always returns a function that returns a port.
func always(port int) func() (int, error) { return func() (int, error) { return port, nil } }

// signsOfACrash are log lines of Envoy, and of the native host, when the filter fails.
var signsOfACrash = []string{"Proxy-Wasm plugin in-VM backtrace", "Function: proxy_on", "Uncaught RuntimeError",
	"weir: fault in the filter"}

// watch ends an Envoy with the test and fails the test if its filter crashed.
func (p *proxy) watch(t *testing.T) {
	t.Cleanup(func() {
		if err := p.Err(); err != nil && !p.stopped {
			t.Error(err)
		}
		p.Stop(grace)
		for _, sign := range signsOfACrash {
			if !p.crashes && strings.Contains(p.Stderr.String(), sign) {
				t.Errorf("the filter crashed: the log says %q", sign)
			}
		}
		show(t, p.Process)
	})
}

// noTime keeps HTTP servers of tests from saying when a file was changed.
var noTime time.Time
