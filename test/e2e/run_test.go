package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/dunglas/httpsfv"

	"github.com/weir-proxy/weir/tools/stack"
)

// runner is weir demo, as make run starts it, in a folder and on ports of its own.
type runner struct {
	t                          *testing.T
	envoy, admin, controlPlane int
	dir, home                  string
	process                    *stack.Process
}

func newRunner(t *testing.T) *runner {
	t.Helper()
	r := &runner{t: t, dir: t.TempDir(), home: t.TempDir()}
	for _, port := range []*int{&r.envoy, &r.admin, &r.controlPlane} {
		var err error
		if *port, err = stack.FreePort(); err != nil {
			t.Fatal(err)
		}
	}
	return r
}

// command returns weir demo with its flags and further flags.
func (r *runner) command(more ...string) stack.Command {
	envoy, err := stack.EnvoyBinary()
	if err != nil {
		r.t.Fatal(err)
	}
	weir, err := filepath.Abs(controlPlanePath)
	if err != nil {
		r.t.Fatal(err)
	}
	flags := append([]string{"demo", "--envoy", envoy, "--dir", r.dir}, more...)
	return stack.Command{Name: "weir demo", Path: weir, Dir: repository, Args: flags, Env: []string{
		"XDG_CONFIG_HOME=" + r.home, fmt.Sprintf("WEIR_PORT_ENVOY=%d", r.envoy),
		fmt.Sprintf("WEIR_PORT_ADMIN=%d", r.admin), fmt.Sprintf("WEIR_PORT_CONTROL_PLANE=%d", r.controlPlane),
	}}
}

// start returns when everything runs.
func (r *runner) start(more ...string) {
	r.t.Helper()
	var err error
	r.process, err = stack.Start(r.command(more...))
	if err != nil {
		r.t.Fatal(err)
	}
	process := r.process
	r.t.Cleanup(func() {
		process.Stop(patience)
		if r.t.Failed() {
			log, _ := os.ReadFile(filepath.Join(r.dir, "log"))
			lines := strings.Split(string(log), "\n")
			r.t.Logf("weir demo wrote:\n%s%s\nand its log ends:\n%s", process.Stdout, process.Stderr,
				strings.Join(lines[max(0, len(lines)-20):], "\n"))
		}
	})
	ctx, cancel := context.WithTimeout(r.t.Context(), patience)
	defer cancel()
	err = process.AwaitReady(ctx, func(context.Context) error {
		if !strings.Contains(process.Stdout.String(), "Ctrl-C ends it.") {
			return errors.New("it has not said so")
		}
		return nil
	})
	if err != nil {
		r.t.Fatal(err)
	}
}

// interrupt sends Ctrl-C. It returns when the program has ended.
func (r *runner) interrupt() {
	r.t.Helper()
	if err := syscall.Kill(r.process.PID(), syscall.SIGINT); err != nil {
		r.t.Fatal(err)
	}
	select {
	case <-r.process.Done():
	case <-time.After(patience):
		r.t.Fatal("it goes on after Ctrl-C")
	}
}

// metric returns a counter of the filter.
func (r *runner) metric(name string) int64 {
	r.t.Helper()
	metrics, err := (&world{}).metricsOf(r.t.Context(), &stack.Envoy{AdminPort: r.admin})
	if err != nil {
		r.t.Fatal(err)
	}
	return metrics[name]
}

func (r *runner) url(path string) string { return fmt.Sprintf("http://127.0.0.1:%d%s", r.envoy, path) }

// children returns the processes that the program has started.
func (r *runner) children() (pids []int) {
	r.t.Helper()
	output, err := exec.Command("pgrep", "--parent", strconv.Itoa(r.process.PID())).Output()
	if err != nil {
		r.t.Fatal("pgrep:", err)
	}
	for _, text := range strings.Fields(string(output)) {
		pid, err := strconv.Atoi(text)
		if err != nil {
			r.t.Fatal(err)
		}
		pids = append(pids, pid)
	}
	return pids
}

// envoyPID finds Envoy among the children.
func (r *runner) envoyPID() int {
	r.t.Helper()
	for _, pid := range r.children() {
		if name, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid)); strings.TrimSpace(string(name)) == "envoy" {
			return pid
		}
	}
	r.t.Fatal("weir demo has no child envoy")
	return 0
}

func mustBeGone(t *testing.T, pids []int) {
	t.Helper()
	for _, pid := range pids {
		err := syscall.Kill(pid, 0)
		if line, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid)); err == nil && len(line) > 0 {
			t.Errorf("process %d is still there: %q", pid, line)
		}
	}
}

// Exactly 100 of 300 requests at the same time from one address pass, the others learn when to come
// back, and a hundred thousand more refusals leave Envoy's memory where it was.
func TestMakeRunKeepsItsPromise(t *testing.T) {
	r := newRunner(t)
	r.start()
	begin := time.Now()
	got := load{url: r.url("/shorten"), clients: 300, total: 300, keep: true}.run(t.Context())
	got.mustBe(t, 200, 429)
	// A machine too busy to answer the filter in 50 ms has the Envoy's share decide, once 100 more.
	byShare := r.metric("decisions.by_share")
	if passed := got.statuses[200]; passed < 100 || passed > 100+min(byShare, 100) {
		t.Fatalf("of 300 requests, %d decided by the share: %s", byShare, got)
	}
	if byShare > 0 {
		t.Logf("calls were late, so the share decided %d requests: %s", byShare, got)
		return
	}
	for _, a := range got.answers {
		if a.status == http.StatusTooManyRequests {
			checkRefusal(t, a, a.at.Sub(begin))
		} else {
			checkAllowed(t, a)
		}
	}

	address := fmt.Sprintf("127.0.0.1:%d", r.envoy)
	flood{address: address, path: "/shorten", total: full(20_000)}.run(t)
	pid := r.envoyPID()
	before, err := memoryOf(t.Context(), r.admin, pid)
	if err != nil {
		t.Fatal(err)
	}
	n := full(100_000)
	statuses := flood{address: address, path: "/shorten", total: n}.run(t)
	passed := statuses[200]
	// One token comes every 36 s.
	if most := int(time.Since(begin)/(36*time.Second)) + 1; passed > most || statuses[429] != n-passed {
		t.Errorf("of %d further requests: %v; at most %d may pass", n, statuses, most)
	}
	var after memory
	err = stack.Await(t.Context(), "Envoy's memory to be as before", func(ctx context.Context) error {
		if after, err = memoryOf(ctx, r.admin, pid); err != nil {
			return err
		}
		if after.allocated > before.allocated+2e6 && time.Since(begin) < time.Minute {
			return errors.New("it is more")
		}
		return nil
	})
	t.Logf("memory before %d requests: %s; after: %s", n, before, after)
	if err != nil || after.allocated > before.allocated+2e6 {
		t.Errorf("Envoy's memory grew: before %s, after %s; %v", before, after, err)
	}
}

// checkLimits checks the parts that every answer about shorten-per-ip has, and returns the member
// of RateLimit.
func checkLimits(t *testing.T, a answer) httpsfv.Item {
	t.Helper()
	policy := listItem(t, a, "RateLimit-Policy")
	limit := listItem(t, a, "RateLimit")
	for _, item := range []httpsfv.Item{policy, limit} {
		if item.Value != "shorten-per-ip" {
			t.Fatalf("it names the policy %v", item.Value)
		}
	}
	if q, w := parameter(t, policy, "q"), parameter(t, policy, "w"); q != 100 || w != 3600 {
		t.Fatalf("RateLimit-Policy: %s", a.Get("RateLimit-Policy"))
	}
	remaining := parameter(t, limit, "r")
	if a.Get("X-RateLimit-Limit") != "100" || a.Get("X-RateLimit-Remaining") != fmt.Sprint(remaining) {
		t.Fatalf("X-RateLimit-Limit %s, -Remaining %s beside RateLimit %s", a.Get("X-RateLimit-Limit"),
			a.Get("X-RateLimit-Remaining"), a.Get("RateLimit"))
	}
	return limit
}

// untilFull returns how many seconds after its answer X-RateLimit-Reset is. After an allowed
// request it is the time when the bucket will be full.
func untilFull(t *testing.T, a answer) int64 {
	t.Helper()
	at, err := strconv.ParseInt(a.Get("X-RateLimit-Reset"), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return at - a.at.Unix()
}

func checkAllowed(t *testing.T, a answer) {
	t.Helper()
	limit := checkLimits(t, a)
	full := parameter(t, limit, "t")
	// The tokens of requests that waited count as leased for 50 ms before they begin to come back.
	if got := untilFull(t, a); full < 36 || full > 3600+1 || got < full-2 || got > full+2 {
		t.Fatalf("RateLimit is %s, and X-RateLimit-Reset is %d s later", a.Get("RateLimit"), got)
	}
	if a.Get("Retry-After") != "" {
		t.Fatalf("an allowed answer has Retry-After %s", a.Get("Retry-After"))
	}
}

// checkRefusal checks a 429 of shorten-per-ip that came `after` the first request of its bucket.
// The next token comes 36 s after that request; the wait is rounded up and stretched by at most a
// tenth.
func checkRefusal(t *testing.T, a answer, after time.Duration) {
	t.Helper()
	limit := checkLimits(t, a)
	retry, err := strconv.ParseInt(a.Get("Retry-After"), 10, 64)
	if err != nil || retry < 36-int64(after.Seconds())-1 || retry > 40 {
		t.Fatalf("Retry-After is %q %s after the first request", a.Get("Retry-After"), after)
	}
	if parameter(t, limit, "r") != 0 || parameter(t, limit, "t") != retry {
		t.Fatalf("RateLimit is %s with Retry-After %d", a.Get("RateLimit"), retry)
	}
	if at := untilFull(t, a); at < retry-2 || at > retry+2 {
		t.Fatalf("X-RateLimit-Reset is %d s later, Retry-After %d", at, retry)
	}
	if a.Get("Cache-Control") != "no-store" || a.Get("Content-Type") != "application/problem+json" {
		t.Fatalf("Cache-Control %q, Content-Type %q", a.Get("Cache-Control"), a.Get("Content-Type"))
	}
	var problem struct {
		Type, Title, Detail, Window string
		Status, Limit               int
		Retry                       int64    `json:"retry_after"`
		Violated                    []string `json:"violated-policies"`
	}
	if err := json.Unmarshal([]byte(a.body), &problem); err != nil {
		t.Fatalf("%v: %s", err, a.body)
	}
	if problem.Type != "https://iana.org/assignments/http-problem-types#quota-exceeded" || problem.Title == "" ||
		problem.Detail == "" ||
		problem.Status != 429 || problem.Limit != 100 || problem.Window != "1h" || problem.Retry != retry ||
		len(problem.Violated) != 1 || problem.Violated[0] != "shorten-per-ip" {
		t.Fatalf("the body is %s", a.body)
	}
}

// listItem reads a structured field that is a list of one item.
func listItem(t *testing.T, a answer, name string) httpsfv.Item {
	t.Helper()
	list, err := httpsfv.UnmarshalList(a.Values(name))
	if err != nil || len(list) != 1 {
		t.Fatalf("%s is not a list of one: %q, %v", name, a.Values(name), err)
	}
	item, ok := list[0].(httpsfv.Item)
	if !ok {
		t.Fatalf("%s is not an item: %q", name, a.Values(name))
	}
	return item
}

func parameter(t *testing.T, item httpsfv.Item, name string) int64 {
	t.Helper()
	value, _ := item.Params.Get(name)
	n, ok := value.(int64)
	if !ok {
		t.Fatalf("%v has no integer %s", item, name)
	}
	return n
}

func TestCtrlCLeavesNothingAndASecondRunStartsAtOnce(t *testing.T) {
	r := newRunner(t)
	r.start()
	children := r.children()
	if len(children) != 2 {
		t.Fatalf("it runs %d processes, want Envoy and the control plane", len(children))
	}
	r.interrupt()
	mustBeGone(t, children)
	if err := r.process.Err(); !strings.Contains(err.Error(), "exit status 0") {
		t.Errorf("after Ctrl-C: %v", err)
	}
	r.start()
	if a := ask(t, http.MethodPost, r.url("/shorten")); a.status != 200 ||
		!strings.Contains(a.Get("RateLimit"), ";r=99;") {
		t.Errorf("the second run answers %d, RateLimit %q; want a fresh bucket", a.status, a.Get("RateLimit"))
	}
}

func TestAKilledRunLeavesNothing(t *testing.T) {
	r := newRunner(t)
	r.start()
	children := r.children()
	r.process.Kill()
	err := stack.Await(t.Context(), "the ports to be free", func(context.Context) error {
		for _, port := range []int{r.envoy, r.admin, r.controlPlane} {
			if owner := stack.InUse(port); owner != "" {
				return fmt.Errorf("%d is used by %s", port, owner)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	mustBeGone(t, children)
}

func TestARunEndsWithItsParts(t *testing.T) {
	r := newRunner(t)
	r.start()
	envoy := r.envoyPID()
	children := r.children()
	if err := syscall.Kill(envoy, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	select {
	case <-r.process.Done():
	case <-time.After(patience):
		t.Fatal("it goes on without Envoy")
	}
	if text := r.process.Stderr.String(); !strings.Contains(text, "envoy has ended (signal: killed)") {
		t.Errorf("it says:\n%s", text)
	}
	mustBeGone(t, children)
}

func TestARunThatFindsAPortInUseSaysByWhom(t *testing.T) {
	r := newRunner(t)
	r.start()
	second := newRunner(t)
	second.envoy = r.envoy
	process, err := stack.Start(second.command())
	if err != nil {
		t.Fatal(err)
	}
	select {
	case <-process.Done():
	case <-time.After(patience):
		process.Kill()
		t.Fatal("it started")
	}
	output := process.Stderr.String()
	want := regexp.MustCompile(fmt.Sprintf(`port %d, which Envoy needs, is used by envoy, process %d; .*WEIR_PORT_ENVOY=`, r.envoy, r.envoyPID()))
	if !want.MatchString(output) {
		t.Errorf("it says:\n%s", output)
	}
}

func TestKeepKeepsConsumptionAndPolicies(t *testing.T) {
	r := newRunner(t)
	r.start()
	load{url: r.url("/shorten"), clients: 10, total: 40}.run(t.Context()).mustBe(t, 200)
	r.interrupt()
	r.start("--keep")
	remaining := int64(100)
	for range 5 { // The Envoy's share decides a request whose first call is late, as on a busy machine.
		a := ask(t, http.MethodPost, r.url("/shorten"))
		if remaining = parameter(t, listItem(t, a, "RateLimit"), "r"); remaining <= 60 {
			return
		}
	}
	t.Errorf("after 45 of 100 requests, over a restart, %d remain", remaining)
}

func TestTheTokenIsWhereTheCommandLineLooks(t *testing.T) {
	r := newRunner(t)
	r.start()
	token, err := os.ReadFile(filepath.Join(r.home, "weir", "token"))
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(r.process.Stdout.String(), "Admin token: "+strings.TrimSpace(string(token))) {
		t.Error("it does not print the token")
	}
	command := exec.Command(controlPlanePath, "get", "nodes")
	command.Env = append(os.Environ(), "XDG_CONFIG_HOME="+r.home,
		fmt.Sprintf("WEIR_SERVER=http://127.0.0.1:%d", r.controlPlane))
	output, err := command.CombinedOutput()
	if err != nil || !strings.Contains(string(output), "envoy-1") {
		t.Errorf("weir get nodes: %v\n%s", err, output)
	}
}
