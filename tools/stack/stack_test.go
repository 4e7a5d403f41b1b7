package stack_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/weir-proxy/weir/tools/stack"
)

// launcherVariable turns this test binary into a launcher that starts one child, says its id and
// never ends.
const launcherVariable = "WEIR_TEST_LAUNCHER"

func TestMain(m *testing.M) {
	if os.Getenv(launcherVariable) == "" {
		os.Exit(m.Run())
	}
	p, err := stack.Start(stack.Command{Name: "child", Path: "/bin/sleep", Args: []string{"1000"}})
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println(p.PID())
	select {}
}

func within(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

func shell(t *testing.T, script string, out *bytes.Buffer) *stack.Process {
	t.Helper()
	c := stack.Command{Name: "script", Path: "/bin/sh", Args: []string{"-c", script}}
	if out != nil {
		c.Out = out
	}
	p, err := stack.Start(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Kill)
	return p
}

func gone(pid int) error {
	if err := syscall.Kill(pid, 0); !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("process %d is still there", pid)
	}
	return nil
}

func TestChildrenDieWithAKilledLauncher(t *testing.T) {
	launcher := exec.Command(os.Args[0])
	launcher.Env = append(os.Environ(), launcherVariable+"=1")
	output, err := launcher.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := launcher.Start(); err != nil {
		t.Fatal(err)
	}
	var child int
	if _, err := fmt.Fscan(output, &child); err != nil {
		t.Fatal("the launcher did not say its child's id:", err)
	}
	if err := launcher.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	launcher.Wait()
	err = stack.Await(within(t, 5*time.Second), "the child to be gone", func(context.Context) error {
		// The process that adopts the child may be slow to collect it; a dead one no longer has a
		// command line.
		if line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", child)); err == nil && len(line) == 0 {
			return nil
		}
		return gone(child)
	})
	if err != nil {
		t.Error(err)
	}
}

func TestStopIsGracefulFirstAndHardAfterTheGrace(t *testing.T) {
	for _, c := range []struct {
		name, script string
		grace        time.Duration
		graceful     bool
	}{
		{"a process that obeys", `echo up; exec sleep 1000`, 10 * time.Second, true},
		{"a process that does not", `trap "" TERM; echo up; while :; do sleep 0.1; done`, 50 * time.Millisecond, false},
		{"a process that has ended", `echo up`, 10 * time.Second, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := shell(t, c.script, nil)
			up := func(context.Context) error {
				if !strings.Contains(p.Stdout.String(), "up") {
					return errors.New("it has not said so")
				}
				return nil
			}
			if err := stack.Await(within(t, 5*time.Second), "the script to be up", up); err != nil {
				t.Fatal(err)
			}
			if got := p.Stop(c.grace); got != c.graceful {
				t.Errorf("graceful: %v, want %v", got, c.graceful)
			}
			if err := gone(p.PID()); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestAChildThatDiesSaysWhy(t *testing.T) {
	p := shell(t, `echo "first"; echo "the disk is full" >&2; exit 3`, nil)
	never := func(context.Context) error { return errors.New("not yet") }
	err := p.AwaitReady(within(t, 10*time.Second), never)
	for _, want := range []string{"script has ended", "exit status 3", "the disk is full"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("the error lacks %q: %v", want, err)
		}
	}
}

func TestAwaitGivesTheLastReason(t *testing.T) {
	err := stack.Await(within(t, 20*time.Millisecond), "rain",
		func(context.Context) error { return errors.New("the sky is blue") })
	if err == nil || err.Error() != "waiting for rain: the sky is blue" {
		t.Error(err)
	}
}

// A user that waits reads the reason once, and not at the first moment.
func TestAWaitSaysOnceWhy(t *testing.T) {
	for _, c := range []struct {
		after time.Duration
		want  int
	}{{0, 1}, {time.Hour, 0}} {
		said, tries := 0, 0
		ready := stack.SayOnce(c.after, func(why error) {
			if why.Error() != "no Redis" {
				t.Errorf("said %v", why)
			}
			said++
		}, func(context.Context) error {
			if tries++; tries <= 5 {
				return errors.New("no Redis")
			}
			return nil
		})
		if err := stack.Await(t.Context(), "it", ready); err != nil || said != c.want || tries != 6 {
			t.Errorf("after %v: said %d times, want %d; %v after %d tries", c.after, said, c.want, err, tries)
		}
	}
}

func TestOutputIsPrefixedAndKept(t *testing.T) {
	var shown bytes.Buffer
	p := shell(t, `printf 'one\ntw'; printf 'o\n'`, &shown)
	<-p.Done()
	if got, want := shown.String(), "script   | one\nscript   | two\n"; got != want {
		t.Errorf("shown:\n%swant:\n%s", got, want)
	}
	if got, want := p.Stdout.String(), "one\ntwo\n"; got != want {
		t.Errorf("kept: %q, want %q", got, want)
	}
	if got := p.Tail(1); got != "two" {
		t.Errorf("last line: %q", got)
	}
}

func TestALogKeepsTheEndWithinABound(t *testing.T) {
	l := stack.NewLog("long", nil)
	line := []byte(strings.Repeat("x", 999) + "\n")
	for range 5000 {
		l.Write(line)
	}
	l.Write([]byte("the end\n"))
	if got := len(l.String()); got > 2<<20 {
		t.Errorf("kept %d bytes of 5 MB", got)
	}
	if got := l.Tail(1); got != "the end" {
		t.Errorf("last line: %q", got)
	}
}

func TestFreePortsAreFreeAndDiffer(t *testing.T) {
	seen := map[int]bool{}
	for range 50 {
		port, err := stack.FreePort()
		if err != nil {
			t.Fatal(err)
		}
		if seen[port] {
			t.Fatalf("port %d came twice", port)
		}
		seen[port] = true
		if owner := stack.InUse(port); owner != "" {
			t.Errorf("port %d is used by %s", port, owner)
		}
	}
}

func TestAPortInUseNamesItsOwner(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	owner := stack.InUse(l.Addr().(*net.TCPAddr).Port)
	if want := "process " + strconv.Itoa(os.Getpid()); !strings.Contains(owner, want) {
		t.Errorf("owner %q, want %q in it", owner, want)
	}
}

func TestConfigurationReplacesTheFiveTextsAndNothingElse(t *testing.T) {
	original, err := os.ReadFile("../../envoy.yaml")
	if err != nil {
		t.Fatal(err)
	}
	o := stack.EnvoyOptions{Config: string(original), Wasm: "/built/weir.wasm", Port: 1, AdminPort: 2, UpstreamPort: 3,
		ControlPlanePort: 4}
	got, err := o.Configuration()
	if err != nil {
		t.Fatal(err)
	}
	_, body, _ := strings.Cut(string(original), "\nnode:")
	before, after := strings.Split("node:"+body, "\n"), strings.Split(got, "\n")
	if len(before) != len(after) {
		t.Fatalf("%d lines became %d", len(before), len(after))
	}
	var changed []string
	for i := range before {
		if before[i] != after[i] {
			changed = append(changed, strings.TrimSpace(after[i]))
		}
	}
	want := []string{
		`socket_address: {address: "127.0.0.1", port_value: 2}`,
		`socket_address: {address: "127.0.0.1", port_value: 1}`,
		`local: {filename: /built/weir.wasm}`,
		`socket_address: {address: "127.0.0.1", port_value: 3}`,
		`socket_address: {address: "127.0.0.1", port_value: 4}`,
	}
	if fmt.Sprint(changed) != fmt.Sprint(want) {
		t.Errorf("changed lines:\n%s\nwant:\n%s", strings.Join(changed, "\n"), strings.Join(want, "\n"))
	}
}

func TestConfigurationTakesAnotherPluginConfiguration(t *testing.T) {
	original, err := os.ReadFile("../../envoy.yaml")
	if err != nil {
		t.Fatal(err)
	}
	got, err := stack.EnvoyOptions{Config: string(original), PluginConfig: `{"policyset": {}}`}.Configuration()
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(got, "\n"+strings.Repeat(" ", 28)+`{"policyset": {}}`+"\n") {
		t.Errorf("the plugin configuration is not in:\n%s", got)
	}
}

func TestConfigurationRefusesAnotherFile(t *testing.T) {
	for _, config := range []string{"", "admin: {}", "#\nnode: {id: x}\n"} {
		if _, err := (stack.EnvoyOptions{Config: config}).Configuration(); err == nil {
			t.Errorf("%q was accepted", config)
		}
	}
}

func TestUpstreamEchoesAndCounts(t *testing.T) {
	u, err := stack.StartUpstream(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer u.Stop()
	response, err := http.Post(fmt.Sprintf("http://127.0.0.1:%d/shorten", u.Port), "text/plain", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	var body bytes.Buffer
	body.ReadFrom(response.Body)
	if !strings.Contains(body.String(), `"method":"POST","path":"/shorten"`) {
		t.Errorf("it answered %s", body.String())
	}
	if u.Requests() != 1 {
		t.Errorf("it counted %d requests", u.Requests())
	}
}

func TestWhatIsMissingSaysWhatToDo(t *testing.T) {
	t.Setenv("WEIR_CACHE", t.TempDir())
	if _, err := stack.EnvoyBinary(); err == nil || !strings.Contains(err.Error(), "make setup") {
		t.Error("no Envoy:", err)
	}
	_, err := stack.StartControlPlane(t.Context(), stack.ControlPlaneOptions{Binary: "nowhere/weir"})
	if err == nil || !strings.Contains(err.Error(), "make build") {
		t.Error("no control plane:", err)
	}
	_, err = stack.StartEnvoy(t.Context(), stack.EnvoyOptions{Binary: "/bin/true", Wasm: "nowhere/weir.wasm"})
	if err == nil || !strings.Contains(err.Error(), "make build") {
		t.Error("no filter:", err)
	}
}

func TestAProcessStaysOnItsProcessors(t *testing.T) {
	var out bytes.Buffer
	p, err := stack.Start(stack.Command{
		Name: "pinned", Path: "/bin/grep", Args: []string{"Cpus_allowed_list", "/proc/self/status"}, CPUs: "0",
		Out: &out,
	})
	if err != nil {
		t.Fatal(err)
	}
	<-p.Done()
	if got := strings.Fields(out.String()); len(got) == 0 || got[len(got)-1] != "0" {
		t.Errorf("pinned to processor 0 the process says %q", out.String())
	}
}
