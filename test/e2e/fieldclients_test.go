//go:build clients

package e2e

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/tools/stack"
)

// The limit of each caller in the tests of clients, and how many requests it sends one after the
// other: the limit twice, and one more.
const (
	fieldQuota    = 3
	fieldWindow   = 3 * time.Second
	fieldRequests = 2*fieldQuota + 1
)

// fieldDialects are the dialects of answers. Octokit reads a reset in Unix time, and nothing else.
var fieldDialects = []struct {
	headers string
	unix    bool
}{
	{headers: "{standard: draft-11}"},
	{headers: "{standard: 'off'}"},
	{headers: "{standard: 'off', legacy: x-ratelimit}", unix: true},
	{headers: "{standard: 'off', legacy: envoy}"},
	{headers: "{legacy: github}", unix: true},
	{headers: "{standard: 'off', legacy: discord}", unix: true},
	{headers: "{legacy: ratelimit}"},
	{headers: "{standard: 'off', legacy: x-rate-limit}"},
}

// fieldOwn returns the time by which a client waits longer than an answer says: octokit adds a
// second to the second of the reset, discord.js a twentieth.
func fieldOwn(client string) time.Duration {
	switch client {
	case "octokit":
		return 2 * time.Second
	case "discordjs-rest":
		return 50 * time.Millisecond
	}
	return 0
}

// The clients that people use, as their makers ship them, use up a limit, are refused, wait as the
// answer says and they have it built in, and pass: in each dialect, algorithm and mode. No wait is
// followed by a second refusal, and none is a second longer than an exact bucket asks for. A call
// that comes to nothing, as on a busy machine, may have taken a token in vain, or leaves a share to
// decide.
func TestClientsOfTheFieldPass(t *testing.T) {
	w := start(t, setup{workers: 2, handler: http.HandlerFunc(func(out http.ResponseWriter, _ *http.Request) {
		out.Header().Set("Content-Type", "application/json")
		fmt.Fprint(out, `{"object":"list","data":[],"has_more":false}`)
	})})
	front := startFront(t, w.envoys[0].URL())
	for i, dialect := range fieldDialects {
		t.Run(dialect.headers, func(t *testing.T) {
			w.awaitApplied(w.apply(fieldPolicies(dialect.headers)))
			before := w.measured(w.envoys[0])
			lateBefore := w.lateCalls()
			caller := "d" + strconv.Itoa(i)
			pairs := runField(t, front.server.URL, caller, dialect.unix)
			time.Sleep(20 * time.Millisecond) // Earlier counts are reported by now.
			d := difference(w.measured(w.envoys[0]), before)
			spared := w.lateCalls() - lateBefore + d["decisions.by_share"]
			var wrong []string
			refused := 0
			for _, p := range pairs {
				n, problems := p.judge(front.of(p.client+"-"+caller, p.path), dialect.headers)
				refused += n
				wrong = append(wrong, problems...)
			}
			t.Logf("%d of %d requests were refused; %d late calls and requests without their answers; wrong: %d",
				refused, len(pairs)*fieldRequests+refused, spared, len(wrong))
			if int64(len(wrong)) > spared {
				t.Errorf("%d were spared:\n%s", spared, strings.Join(wrong, "\n"))
			}
		})
	}
}

// fieldPaths returns the paths of the policies: mode and algorithm.
func fieldPaths() (paths []string) {
	for _, mode := range []string{"leased", "strict"} {
		for _, algorithm := range []string{"token_bucket", "sliding_log", "fixed_window"} {
			paths = append(paths, "/"+mode+"/"+algorithm)
		}
	}
	return paths
}

func fieldPolicies(headers string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "version: weir/v1\nheaders: %s\npolicies:\n", headers)
	for _, path := range fieldPaths() {
		mode, algorithm, _ := strings.Cut(path[1:], "/")
		fmt.Fprintf(&b, "  - {name: %s-%s, match: {paths: [%s, %s/**]}, partition: [header:x-caller], mode: %s, "+
			"algorithm: %s, limit: {quota: %d, window: %v}}\n",
			mode, strings.ReplaceAll(algorithm, "_", "-"), path, path, mode, algorithm, fieldQuota, fieldWindow)
	}
	return b.String()
}

// fieldPair is a client at a path, and how its requests ended.
type fieldPair struct {
	client, path string
	ended        []string
}

// runField runs all clients at all paths, side by side.
func runField(t *testing.T, url, caller string, unix bool) (pairs []fieldPair) {
	t.Helper()
	cache, err := stack.CacheDir()
	if err != nil {
		t.Fatal(err)
	}
	root, err := filepath.Abs(repository)
	if err != nil {
		t.Fatal(err)
	}
	installed := filepath.Join(cache, "field")
	npm := []string{"got", "ky", "axios-retry", "discordjs-rest", "openai", "anthropic"}
	if unix {
		npm = append(npm, "octokit")
	}
	program := filepath.Join(installed, "field.mjs") // It imports the files beside it.
	text, err := os.ReadFile(filepath.Join(root, "test/clients/field.mjs"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(program, text, 0o600); err != nil {
		t.Fatalf("%v: run `tools/setup.sh field`", err)
	}
	var mu sync.Mutex
	var running sync.WaitGroup
	for _, run := range []struct {
		command []string
		clients []string
	}{
		{[]string{filepath.Join(cache, "clients/node"), program}, npm},
		{[]string{filepath.Join(cache, "clients/venv/bin/python"), filepath.Join(root, "test/clients/field.py")},
			[]string{"urllib3", "httpx-retries"}},
		{[]string{filepath.Join(installed, "retryable")}, []string{"go-retryablehttp"}},
	} {
		running.Go(func() {
			args := append(run.command[1:], url, strconv.Itoa(fieldRequests), strings.Join(run.clients, ","),
				strings.Join(fieldPaths(), ","), caller)
			output, err := fieldOutput(t, installed, run.command[0], args)
			var got []fieldPair
			for line := range strings.Lines(output) {
				if words := strings.Fields(line); len(words) > 2 {
					got = append(got, fieldPair{words[0], words[1], words[2:]})
				}
			}
			if err != nil || len(got) != len(run.clients)*len(fieldPaths()) {
				t.Errorf("%v: %v\n%s", run.command, err, output)
			}
			mu.Lock()
			defer mu.Unlock()
			pairs = append(pairs, got...)
		})
	}
	running.Wait()
	return pairs
}

func fieldOutput(t *testing.T, installed, name string, args []string) (string, error) {
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	run := exec.CommandContext(ctx, name, args...)
	run.Env = append(os.Environ(), "PYTHONPATH="+filepath.Join(installed, "python"), "PYTHONDONTWRITEBYTECODE=1",
		"NO_PROXY=127.0.0.1", "no_proxy=127.0.0.1")
	output, err := run.CombinedOutput()
	return string(output), err
}

// fieldFront is a proxy before Envoy that notes all requests and answers.
type fieldFront struct {
	server *httptest.Server
	mu     sync.Mutex
	seen   map[string][]fieldAnswer
}

// fieldAnswer is when a request came, its answer, when that left, and the seconds that a refusal
// says.
type fieldAnswer struct {
	came, left time.Time
	status     int
	wait       string
}

func startFront(t *testing.T, envoy string) *fieldFront {
	t.Helper()
	to, err := url.Parse(envoy)
	if err != nil {
		t.Fatal(err)
	}
	c := &fieldFront{seen: map[string][]fieldAnswer{}}
	proxy := httputil.NewSingleHostReverseProxy(to)
	proxy.Transport = &http.Transport{MaxIdleConnsPerHost: 100}
	c.server = httptest.NewServer(http.HandlerFunc(func(out http.ResponseWriter, r *http.Request) {
		key := fieldKey(r.Header.Get("x-caller"), r.URL.Path)
		noted := &noting{ResponseWriter: out}
		came := time.Now()
		proxy.ServeHTTP(noted, r)
		c.mu.Lock()
		defer c.mu.Unlock()
		c.seen[key] = append(c.seen[key], fieldAnswer{came, noted.left, noted.status, out.Header().Get("Retry-After")})
	}))
	t.Cleanup(func() { c.server.CloseClientConnections(); c.server.Close() })
	return c
}

// noting notes when an answer leaves.
type noting struct {
	http.ResponseWriter
	status int
	left   time.Time
}

func (n *noting) WriteHeader(status int) {
	n.status, n.left = status, time.Now()
	n.ResponseWriter.WriteHeader(status)
}

// fieldKey names a caller at a policy: the first two parts of a path are the policy's.
func fieldKey(caller, path string) string {
	return caller + "/" + strings.Join(strings.SplitN(path, "/", 4)[1:3], "/")
}

// of returns the requests of a caller to a policy, in the order in which they came.
func (c *fieldFront) of(caller, path string) []fieldAnswer {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := slices.Clone(c.seen[fieldKey(caller, path)])
	slices.SortFunc(all, func(a, b fieldAnswer) int { return a.came.Compare(b.came) })
	return all
}

// judge returns the mistakes in a client's requests, and how many were refused.
func (p fieldPair) judge(all []fieldAnswer, headers string) (refused int, wrong []string) {
	say := func(format string, args ...any) {
		wrong = append(wrong, p.client+" "+p.path+" "+headers+": "+fmt.Sprintf(format, args...)+describe(all))
	}
	if len(p.ended) != fieldRequests || strings.Trim(strings.Join(p.ended, ""), "20") != "" {
		say("its requests ended with %v", p.ended)
	}
	exact := newExact(p.path)
	for i, e := range all {
		if e.status != http.StatusTooManyRequests {
			exact.pass(e.left)
			continue
		}
		refused++
		seconds, err := strconv.Atoi(e.wait)
		if err != nil {
			say("a refusal says %q", e.wait)
			continue
		}
		said := time.Duration(seconds) * time.Second
		if longest := exact.wait(e.came) + time.Second + 2*fieldLent; said > longest {
			say("it was to wait %v, and %v is enough", said, longest)
		}
		if i+1 == len(all) {
			continue // The client has given up, and its request says so.
		}
		next := all[i+1]
		if next.status != http.StatusOK {
			say("the request after %v ended with %d", next.came.Sub(e.left), next.status)
		}
		waited := next.came.Sub(e.left)
		if own := fieldOwn(p.client); waited < said-10*time.Millisecond ||
			waited-stalls.between(e.left, next.came) > said+own+900*time.Millisecond {
			say("it waited %v instead of %v", waited, said)
		}
	}
	// By Discord's own fields that client waits before it is refused, until the bucket is full.
	if ahead := p.client == "discordjs-rest" && strings.Contains(headers, "discord"); ahead != (refused == 0) {
		say("%d requests were refused", refused)
	}
	return refused, wrong
}

// describe returns the course of a caller's requests.
func describe(all []fieldAnswer) string {
	var b strings.Builder
	for _, e := range all {
		fmt.Fprintf(&b, "\n  at %7.3f s, for %5.1f ms: %d", e.came.Sub(all[0].came).Seconds(),
			e.left.Sub(e.came).Seconds()*1000, e.status)
		if e.wait != "" {
			b.WriteString(", wait " + e.wait)
		}
	}
	return b.String()
}

// fieldLent is for how long a token counts that a request has waited for.
const fieldLent = 50 * time.Millisecond

// exactBucket is a bucket by its algorithm alone. Where the grid of a fixed window lies is not
// known, so of that it only knows that a window is enough.
type exactBucket struct {
	params  quota.Params
	state   quota.State
	windows quota.Windows
	history quota.History
}

func newExact(path string) *exactBucket {
	window := quota.Span(fieldWindow.Microseconds())
	e := &exactBucket{}
	var err error
	switch filepath.Base(path) {
	case "token_bucket":
		e.params, err = quota.NewParams(fieldQuota, window, fieldQuota)
	case "sliding_log":
		e.windows, err = quota.NewWindows(quota.SlidingLog, fieldQuota, window, 1)
	}
	if err != nil {
		panic(err)
	}
	return e
}

func (e *exactBucket) pass(at time.Time) {
	now := quota.Instant(at.UnixMicro())
	switch {
	case e.windows.Quota > 0:
		e.windows.Advance(&e.history, now)
		e.windows.Add(&e.history, now, 1)
	case e.params.Den > 0:
		e.state = e.params.Refill(e.state, now)
		e.state.Debt += e.params.Den
	}
}

// wait returns the wait of a request that comes at an instant.
func (e *exactBucket) wait(at time.Time) time.Duration {
	now := quota.Instant(at.UnixMicro())
	switch {
	case e.windows.Quota > 0:
		e.windows.Advance(&e.history, now)
		return max(0, time.Duration(e.windows.Ready(&e.history, 1)-now)*time.Microsecond)
	case e.params.Den > 0:
		_, r := e.params.Take(e.state, now, 1)
		return time.Duration(r.RetryAfter) * time.Microsecond
	}
	return fieldWindow
}
