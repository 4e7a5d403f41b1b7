// Package console tests the console in a real browser, against the processes of `make run`: weir
// serve, an Envoy with the filter, a small service. It is a module of its own: no program of Weir
// is built with the packages that drive a browser.
package console

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/chromedp/chromedp"

	programs "github.com/weir-proxy/weir/tools/stack"
)

// root is the top of the tree, seen from here.
const root = "../.."

// dashboard is where the console's link leads. It has no address, so nothing can be asked there.
const dashboard = "https://grafana.invalid/d/weir?var-x=1"

// startTime bounds how long the stack may take to come up.
const startTime = 60 * time.Second

// Stack has the processes of `make run`.
type Stack struct {
	// Console and Envoy are the addresses of the control plane and of the proxy, Token the
	// administrator's; Viewer, Editor and Node are tokens of those roles.
	Console, Envoy, Token, Viewer, Editor, Node string
	command                                     *exec.Cmd
}

// StartStack runs weir demo of the tree with its state in a folder.
func StartStack(dir string) (*Stack, error) {
	ports, err := freePorts(3)
	if err != nil {
		return nil, err
	}
	s := &Stack{Envoy: "http://127.0.0.1:" + ports[0], Console: "http://127.0.0.1:" + ports[2]}
	tokens := filepath.Join(dir, "tokens")
	if err := s.makeTokens(tokens); err != nil {
		return nil, err
	}
	envoy, err := programs.EnvoyBinary()
	if err != nil {
		return nil, err
	}
	s.command = exec.Command("build/weir", "demo", "--envoy", envoy, "--dir", filepath.Join(dir, "run"),
		"--tokens-file", tokens, "--dashboard-url", dashboard,
		"--envoy-port", ports[0], "--admin-port", ports[1], "--control-plane-port", ports[2])
	s.command.Dir = root
	s.command.Env = append(os.Environ(), "XDG_CONFIG_HOME="+dir)
	out, err := s.command.StdoutPipe()
	if err != nil {
		return nil, err
	}
	s.command.Stderr = os.Stderr
	if err := s.command.Start(); err != nil {
		return nil, fmt.Errorf("%w: make build builds it", err)
	}
	s.Token, err = tokenIn(out)
	if err != nil {
		s.Stop()
		return nil, err
	}
	return s, nil
}

// makeTokens writes a tokens file with one token for each other role.
func (s *Stack) makeTokens(file string) error {
	var lines strings.Builder
	for role, secret := range map[string]*string{"viewer": &s.Viewer, "editor": &s.Editor, "node": &s.Node} {
		command := exec.Command("build/weir", "token", "new", "--name", "a-"+role, "--role", role, "-o", "json")
		command.Dir = root
		out, err := command.Output()
		if err != nil {
			return fmt.Errorf("weir token new: %w: make build builds it", err)
		}
		var made struct{ Token, Line string }
		if err := json.Unmarshal(out, &made); err != nil {
			return err
		}
		*secret = made.Token
		lines.WriteString(made.Line + "\n")
	}
	return os.WriteFile(file, []byte(lines.String()), 0o600)
}

// tokenIn reads the output of the stack until the token, and the rest in the background.
func tokenIn(out io.Reader) (string, error) {
	found := make(chan string, 1)
	go func() {
		for lines := bufio.NewScanner(out); lines.Scan(); {
			if token, ok := strings.CutPrefix(lines.Text(), "Admin token: "); ok {
				found <- token
			}
		}
	}()
	select {
	case token := <-found:
		return token, nil
	case <-time.After(startTime):
		return "", errors.New("the stack did not come up")
	}
}

// Stop ends the stack in order.
func (s *Stack) Stop() error {
	if err := s.command.Process.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	return s.command.Wait()
}

func freePorts(n int) (ports []string, err error) {
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		defer l.Close()
		_, port, err := net.SplitHostPort(l.Addr().String())
		if err != nil {
			return nil, err
		}
		ports = append(ports, port)
	}
	return ports, nil
}

// Call makes a REST call with the administrator's token. A status that is no success is an error.
func (s *Stack) Call(method, path, body string) (string, error) {
	r, err := http.NewRequest(method, s.Console+path, strings.NewReader(body))
	if err != nil {
		return "", err
	}
	r.Header.Set("Authorization", "Bearer "+s.Token)
	r.Header.Set("If-Match", "*")
	if method != http.MethodGet {
		r.Header.Set("Content-Type", "application/json")
	}
	w, err := http.DefaultClient.Do(r)
	if err != nil {
		return "", err
	}
	defer w.Body.Close()
	text, err := io.ReadAll(w.Body)
	if err == nil && w.StatusCode >= 300 {
		err = fmt.Errorf("%s %s: %d %s", method, path, w.StatusCode, text)
	}
	return string(text), err
}

// Load sends rate requests a second to the proxy until ctx ends: some callers with keys make links,
// and one of them makes far too many.
func (s *Stack) Load(ctx context.Context, rate int) {
	tick := time.NewTicker(time.Second / time.Duration(rate))
	defer tick.Stop()
	for i := 0; ; i++ {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		key := "key-of-alice"
		if i%4 == 0 {
			key = fmt.Sprint("key-of-", i%60)
		}
		go s.send(ctx, i, key)
	}
}

func (s *Stack) send(ctx context.Context, i int, key string) {
	method, path := http.MethodPost, "/shorten"
	if i%3 == 0 {
		method, path = http.MethodGet, "/abc"
	}
	r, err := http.NewRequestWithContext(ctx, method, s.Envoy+path, nil)
	if err != nil {
		return
	}
	r.Header.Set("X-Api-Key", key)
	if w, err := http.DefaultClient.Do(r); err == nil { // A lost request is load, too.
		io.Copy(io.Discard, w.Body)
		w.Body.Close()
	}
}

// Browser starts Debian's Chromium. The returned function ends it.
func Browser(ctx context.Context) (context.Context, context.CancelFunc) {
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath("chromium"),
		chromedp.Flag("no-sandbox", true), chromedp.Flag("disable-dev-shm-usage", true),
		chromedp.Flag("force-color-profile", "srgb"), chromedp.Flag("lang", "en-GB"),
		// By default it is killed once the thread has ended that started it, and a load ends threads.
		chromedp.ModifyCmdFunc(func(*exec.Cmd) {}))
	allocator, end := chromedp.NewExecAllocator(ctx, options...)
	quiet := chromedp.WithErrorf(func(string, ...any) {}) // It does not know all events of this Chromium.
	tab, closeTab := chromedp.NewContext(allocator, quiet)
	return tab, func() { closeTab(); end() }
}

// Named finds an element by its text or its label.
func Named(element, name string) string {
	return fmt.Sprintf(`//%s[normalize-space()=%q or @aria-label=%[2]q]`, element, name)
}

// LogIn opens the console and logs in with a token.
func LogIn(url, token string) chromedp.Tasks {
	return chromedp.Tasks{
		chromedp.Navigate(url + "/console"),
		chromedp.WaitVisible(`input[name="token"]`, chromedp.ByQuery),
		chromedp.SendKeys(`input[name="token"]`, token, chromedp.ByQuery),
		chromedp.Click(`button[type="submit"]`, chromedp.ByQuery),
		chromedp.WaitVisible(`header.top`, chromedp.ByQuery),
	}
}
