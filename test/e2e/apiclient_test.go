package e2e

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weir-proxy/weir/client"
	"github.com/weir-proxy/weir/tools/stack"
)

const consumersPage = "docs/integrate/for-api-consumers.md"

// counting counts the refusals that pass through it.
type counting struct{ refused atomic.Int64 }

func (c *counting) RoundTrip(r *http.Request) (*http.Response, error) {
	answer, err := http.DefaultTransport.RoundTrip(r)
	if err == nil && answer.StatusCode == http.StatusTooManyRequests {
		c.refused.Add(1)
	}
	return answer, err
}

// A program that sends three times its burst as fast as its client lets it is never refused, in
// each dialect of the answers. On a busy machine, a call for a token may come to nothing and have
// taken a token that no answer has shown the client. In strict mode a token counts as lent for up
// to 100 ms, in which a full bucket earns nothing, and answers do not say so. At this rate it is an
// eighth of a token, less than the client leaves between its requests.
func TestTheClientIsNotRefused(t *testing.T) {
	t.Parallel()
	const burst = 5
	w := start(t, setup{})
	for i, headers := range []string{
		"{standard: draft-11}", "{standard: 'off', legacy: x-ratelimit}", "{standard: 'off', legacy: envoy}",
		"{standard: 'off', legacy: discord}", "{legacy: ratelimit}",
	} {
		t.Run(headers, func(t *testing.T) {
			// A new name makes a new bucket, so that each dialect starts with a full bucket.
			w.awaitApplied(w.apply(fmt.Sprintf(`
version: weir/v1
headers: %s
policies:
  - {name: p%d, partition: [client_ip], limit: {quota: %d, window: 4s}, mode: strict}
`, headers, i, burst)))
			base, lateBefore := &counting{}, w.lateCalls()
			api := client.New(base, client.Options{MaxWait: patience})
			for range 3 * burst {
				r, err := http.NewRequestWithContext(w.ctx, http.MethodGet, w.envoys[0].URL()+"/v1/things", nil)
				if err != nil {
					t.Fatal(err)
				}
				answer, err := api.RoundTrip(r)
				if err != nil {
					t.Fatal(err)
				}
				answer.Body.Close()
				if answer.StatusCode != http.StatusOK {
					t.Fatalf("%d %v", answer.StatusCode, answer.Header)
				}
			}
			if n, late := base.refused.Load(), w.lateCalls()-lateBefore; n > late {
				t.Errorf("%d of %d requests were refused on their way, %d calls came to nothing", n, 3*burst, late)
			}
		})
	}
}

// A request that is refused because others used the quota up passes after the wait. A call that
// comes to nothing, as on a busy machine, leaves a share to decide, whose tokens are charged
// later: such a run shows nothing, and is tried again.
func TestTheClientRepeatsARefusedRequest(t *testing.T) {
	t.Parallel()
	w := start(t, setup{})
	const tries = 5
	for i := range tries {
		w.awaitApplied(w.apply(fmt.Sprintf(`
version: weir/v1
policies:
  - {name: p%d, partition: [], limit: {quota: 2, window: 10s}, mode: strict}
`, i)))
		lateBefore := w.lateCalls()
		status, refusals := repeatRefused(t, w)
		if w.lateCalls() > lateBefore {
			continue
		}
		if status != http.StatusOK || refusals != 1 {
			t.Errorf("%d after %d refusals, want 200 after one refusal", status, refusals)
		}
		return
	}
	t.Fatalf("calls came to nothing in each of %d runs", tries)
}

// repeatRefused uses a quota up, and returns how a request of the client then ended, and how often
// it was refused before.
func repeatRefused(t *testing.T, w *world) (status int, refusals int64) {
	t.Helper()
	url := w.envoys[0].URL() + "/v1/things"
	load{url: url, clients: 2, total: 12}.run(w.ctx)
	base := &counting{}
	r, err := http.NewRequestWithContext(w.ctx, http.MethodPut, url, strings.NewReader("body"))
	if err != nil {
		t.Fatal(err)
	}
	api := http.Client{Transport: client.New(base, client.Options{Spread: time.Second, MaxWait: patience})}
	answer, err := api.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	answer.Body.Close()
	return answer.StatusCode, base.refused.Load()
}

// The answers on the page for API consumers are real answers. Each program of the page gets all its
// requests through a limit that it exceeds.
func TestTheConsumersPageIsTrue(t *testing.T) {
	t.Parallel()
	w := start(t, setup{policies: `
version: weir/v1
headers: {standard: draft-11, legacy: x-ratelimit}
policies:
  - {name: things, match: {paths: ["/v1/**"]}, partition: [client_ip], limit: {quota: 3, window: 2s}, mode: strict}
  - {name: per-key, match: {paths: [/shown]}, partition: [client_ip], limit: {quota: 100, window: 24h}, mode: strict}
`})
	url := w.envoys[0].URL()
	passed := ask(t, http.MethodGet, url+"/shown")
	load{url: url + "/shown", clients: 4, total: 200}.run(w.ctx)
	refused := ask(t, http.MethodGet, url+"/shown")
	ran := map[string]bool{}
	for _, b := range blocks(t, consumersPage) {
		ran[b.language] = true
		if b.language == "http" {
			shows(t, b, passed, refused)
			continue
		}
		output, err := example(t, b, url)
		statuses := strings.Fields(output)
		if err != nil || len(statuses) < 5 || strings.Trim(strings.Join(statuses, ""), "20") != "" {
			t.Errorf("%s should print 200 several times, and prints (%v)\n%s", b, err, output)
		}
	}
	for _, language := range []string{"http", "sh", "go", "python", "typescript"} {
		if !ran[language] {
			t.Errorf("%s has no block of %s", consumersPage, language)
		}
	}
}

// shows holds a block of the page to the real answer of its status.
func shows(t *testing.T, b block, answers ...answer) {
	t.Helper()
	lines := strings.Split(strings.TrimSpace(b.text), "\n")
	for _, a := range answers {
		if !strings.Contains(lines[0], http.StatusText(a.status)) {
			continue
		}
		for _, line := range lines[1:] {
			name, value, _ := strings.Cut(line, ": ")
			if withoutFigures(a.Get(name)) != withoutFigures(value) {
				t.Errorf("%s says %s, the answer has %q", b, line, a.Get(name))
			}
		}
		return
	}
	t.Errorf("%s is no answer that there was", b)
}

// withoutFigures leaves out all numbers.
func withoutFigures(text string) string {
	return strings.Map(func(r rune) rune {
		if r >= '0' && r <= '9' {
			return -1
		}
		return r
	}, text)
}

// example runs a program of the page against this Envoy.
func example(t *testing.T, b block, url string) (string, error) {
	t.Helper()
	cache, err := stack.CacheDir()
	if err != nil {
		t.Fatal(err)
	}
	root, err := filepath.Abs(repository)
	if err != nil {
		t.Fatal(err)
	}
	installed := filepath.Join(cache, "clients")
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	text := strings.ReplaceAll(b.text, "https://api.example.com", url)
	var command []string
	switch b.language {
	case "sh":
		command = []string{"bash", "-eu", write("example.sh", text)}
	case "go":
		command = []string{"go", "run", write("main.go", text)}
	case "python":
		command = []string{filepath.Join(installed, "venv/bin/python"), write("example.py", text)}
	case "typescript":
		twin, err := os.ReadFile(filepath.Join(root, "client/typescript/weir-client.ts"))
		if err != nil {
			t.Fatal(err)
		}
		write("weir-client.ts", string(twin))
		write("package.json", `{"type": "module"}`)
		command = []string{filepath.Join(installed, "node"), write("example.ts", text)}
	default:
		t.Fatalf("%s: no test knows this language", b)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	run := exec.CommandContext(ctx, command[0], command[1:]...)
	run.Dir = root
	run.Env = append(os.Environ(), "PYTHONPATH="+filepath.Join(root, "client/python"), "PYTHONDONTWRITEBYTECODE=1",
		"NO_PROXY=127.0.0.1", "no_proxy=127.0.0.1")
	output, err := run.CombinedOutput()
	return string(output), err
}
