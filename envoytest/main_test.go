package envoytest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// guest is the scripted filter of testdata/guest, compiled once for all tests.
var guest *Module

func TestMain(m *testing.M) {
	code, err := runWithGuest(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func runWithGuest(m *testing.M) (code int, err error) {
	dir, err := os.MkdirTemp("", "envoytest")
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(dir)
	file := filepath.Join(dir, "guest.wasm")
	build := exec.Command("../wasm-build.sh", "-o", file, "--keep-all-exports", "testdata/guest")
	if output, err := build.CombinedOutput(); err != nil {
		return 0, fmt.Errorf("building the test guest: %w\n%s", err, output)
	}
	wasm, err := os.ReadFile(file)
	if err != nil {
		return 0, err
	}
	if guest, err = Compile(wasm); err != nil {
		return 0, err
	}
	defer guest.Close()
	return m.Run(), nil
}

// start returns a running host of the guest. A problem that the test does not take out of the way
// fails it.
func start(t *testing.T, opt Options) *Host {
	t.Helper()
	h := prepare(t, opt)
	if err := h.Start(); err != nil {
		t.Fatal(err)
	}
	return h
}

// prepare makes a host as start does, but does not call Start.
func prepare(t *testing.T, opt Options) *Host {
	t.Helper()
	if opt.T == nil {
		opt.T = t
	}
	h := guest.New(opt)
	t.Cleanup(func() {
		h.Close()
		if t.Failed() {
			t.Log("the log:\n" + h.LogText())
		}
	})
	return h
}

// quiet is a Reporter for tests that expect problems.
type quiet struct{}

func (quiet) Errorf(string, ...any) {}

// get returns a request with a script for each of its callbacks, given as name and script in turn.
func get(scripts ...string) Request {
	r := Request{Headers: [][2]string{{":method", "GET"}, {":path", "/x?q=1"}, {":authority", "a.example"}}}
	for i := 0; i < len(scripts); i += 2 {
		r.Headers = append(r.Headers, [2]string{"x-on-" + scripts[i], scripts[i+1]})
	}
	return r
}

// said returns the log lines since mark, an earlier length of the log.
func said(h *Host, mark int) []string {
	var lines []string
	for _, l := range h.Logs()[mark:] {
		lines = append(lines, l.Text)
	}
	return lines
}

// do runs a script in the request callback on a worker and returns the results of its commands.
func do(h *Host, worker int, script string) []string {
	mark := h.logLength()
	s := h.Worker(worker).Request(get("request", script))
	lines := said(h, mark)
	s.Cancel()
	return results(lines)
}

// results cuts the callback and the command off each line.
func results(lines []string) []string {
	var r []string
	for _, l := range lines {
		if _, result, ok := strings.Cut(l, " = "); ok {
			r = append(r, result)
		} else {
			r = append(r, l)
		}
	}
	return r
}

// equal compares lines and shows both sides on a difference.
func equal(t *testing.T, got []string, want ...string) {
	t.Helper()
	if len(got) == len(want) {
		same := true
		for i := range got {
			same = same && got[i] == want[i]
		}
		if same {
			return
		}
	}
	t.Errorf("got:\n\t%s\nwant:\n\t%s", strings.Join(got, "\n\t"), strings.Join(want, "\n\t"))
}
