package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/weir-proxy/weir/shared/wire"
	"github.com/weir-proxy/weir/tools/stack"
)

// nextVersion returns the files that make the next version out of this tree, by their paths. Its
// protocol has the next number, and each of its messages has a further byte after the header. It
// reads filters and stores from the oldest protocol on.
func nextVersion(t *testing.T, oldest int) (files map[string][]byte) {
	t.Helper()
	const protocol, snapshot = "shared/wire/protocol.go", "shared/wire/snapshot.go"
	return changeSources(t, []sourceChange{
		{protocol, protocolLine("Protocol", wire.Protocol), protocolLine("Protocol", wire.Protocol+1)},
		{protocol, protocolLine("Oldest", wire.Oldest), protocolLine("Oldest", oldest)},
		{protocol, "magic), Protocol)", "magic), Protocol, 42)"},
		{protocol, "\tb := c.readBytes(headerSize)\n", `	b := c.readBytes(headerSize)
			if c.err == nil && b[headerSize-1] > 1 {
				if field := c.readBytes(1); c.err == nil && field[0] != 42 {
					c.err = ErrMagic
				}
			}
		`},
		{protocol, "\tmessage = append([]byte(nil), message...)\n", `	message = append(append([]byte(nil), message[:headerSize]...), message[headerSize+1:]...)
		`},
		{snapshot, "snapshotHeader = headerSize + 8 + 8", "snapshotHeader = headerSize + 1 + 8 + 8"},
	})
}

// sourceChange is a text of a source file, and the text that replaces it.
type sourceChange struct{ path, before, after string }

// changeSources returns the changed files by their paths. It writes nothing.
func changeSources(t *testing.T, changes []sourceChange) (files map[string][]byte) {
	t.Helper()
	files = map[string][]byte{}
	for _, change := range changes {
		content, read := files[change.path]
		if !read {
			var err error
			if content, err = os.ReadFile(filepath.Join(repository, change.path)); err != nil {
				t.Fatal(err)
			}
		}
		if !bytes.Contains(content, []byte(change.before)) {
			t.Fatalf("%s has no %q", change.path, change.before)
		}
		files[change.path] = bytes.Replace(content, []byte(change.before), []byte(change.after), 1)
	}
	return files
}

// protocolLine returns the line of a constant.
func protocolLine(name string, value int) string { return fmt.Sprintf("const %s = %d\n", name, value) }

// build runs a command that builds a part of the tree.
func build(t *testing.T, dir, name string, args ...string) {
	t.Helper()
	command := exec.Command(name, args...)
	command.Dir = dir
	if output, err := command.CombinedOutput(); err != nil {
		t.Fatalf("cannot build with %s: %v\n%s", name, err, output)
	}
}

// nextPlane is the control plane of the next version that reads filters and stores of this version.
// It is built once for all tests, in dir.
var nextPlane struct {
	sync.Once
	dir, binary string
}

// nextControlPlane returns the control plane of the next version.
func nextControlPlane(t *testing.T) (binary string) {
	t.Helper()
	nextPlane.Do(func() {
		var err error
		if nextPlane.dir, err = os.MkdirTemp("", "weir-e2e-"); err != nil {
			t.Fatal(err)
		}
		nextPlane.binary = buildControlPlane(t, nextPlane.dir, nextVersion(t, wire.Oldest))
	})
	if nextPlane.binary == "" {
		t.Fatal("the next version could not be built")
	}
	return nextPlane.binary
}

// buildControlPlane builds the control plane of this tree with changed files, in a folder. Builds
// take minutes on a busy machine and give way to other tests. So the tests with builds are in files
// whose names come early: the other parallel tests run meanwhile.
func buildControlPlane(t *testing.T, dir string, files map[string][]byte) (binary string) {
	t.Helper()
	replace := map[string]string{}
	for path, content := range files {
		source, err := filepath.Abs(filepath.Join(repository, path))
		if err != nil {
			t.Fatal(err)
		}
		replace[source] = filepath.Join(dir, filepath.Base(path))
		if err := os.WriteFile(replace[source], content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	text, err := json.Marshal(map[string]any{"Replace": replace})
	overlay := filepath.Join(dir, "overlay")
	if err := errors.Join(err, os.WriteFile(overlay, text, 0o600)); err != nil {
		t.Fatal(err)
	}
	binary = filepath.Join(dir, "weir")
	build(t, repository, "nice", "-n", "5", "go", "build", "-buildvcs=false", "-trimpath", "-overlay", overlay,
		"-o", binary, ".")
	return binary
}

// nextFilter builds the filter of the next version from a copy: TinyGo takes no overlay.
func nextFilter(t *testing.T) (module string) {
	t.Helper()
	dir := t.TempDir()
	for _, part := range []string{"filter", "shared", "tools/native", "tools/tinygo", "tools/wasmgate"} {
		if err := os.CopyFS(filepath.Join(dir, part), os.DirFS(filepath.Join(repository, part))); err != nil {
			t.Fatal(err)
		}
	}
	for _, file := range []string{"go.mod", "go.sum", "tools/setup.sh", "wasm-build.sh"} {
		content, err := os.ReadFile(filepath.Join(repository, file))
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, file), content, 0o700)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	for path, content := range nextVersion(t, wire.Oldest) {
		if err := os.WriteFile(filepath.Join(dir, path), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	module = filepath.Join(dir, "weir.wasm")
	build(t, dir, "nice", "-n", "5", "./wasm-build.sh", "-o", module)
	if host == stack.NativeHost {
		build(t, dir, "filter/native/build.sh", module)
	}
	return module
}

// A filter and a control plane that do not speak each other's protocol: requests are decided by the
// failure ladder, and the log, the list of nodes and the end of `weir serve` say which side to
// upgrade. With builds that do, all is as before, and nothing was lost; two versions of the filter
// share a bucket.
func TestOtherProtocolsAreNotTakenForThisOne(t *testing.T) {
	t.Parallel()
	const policies = `
version: weir/v1
policies:
  - {name: closed, match: {paths: [/closed]}, partition: [], limit: {quota: 10, window: 24h}, mode: strict, on_failure: [deny]}
  - {name: open, match: {paths: [/open]}, partition: [], limit: {quota: 10, window: 24h}, mode: strict, on_failure: [allow]}
`
	const more = `  - {name: more, match: {paths: [/more]}, partition: [], limit: {quota: 2, window: 24h}, mode: strict, on_failure: [deny]}
`
	w := start(t, setup{policies: policies, embedded: true})
	envoy := w.envoys[0]
	pass := func(path string, n int) int64 {
		return load{url: envoy.URL() + path, clients: 1, total: n}.run(w.ctx).statuses[http.StatusOK]
	}
	// On a busy machine an answer may be late, and the ladder refuses.
	passes := func() {
		t.Helper()
		w.await("a request to pass", func(context.Context) error {
			if pass("/closed", 1) != 1 {
				return errors.New("it was refused")
			}
			return nil
		})
	}
	passes()
	today, data := w.serve.Binary, w.serve.DataDir

	w.controlPlane.Stop()
	w.serve.Binary, w.serve.DataDir = buildControlPlane(t, t.TempDir(), nextVersion(t, wire.Protocol+1)), t.TempDir()
	w.startControlPlane()
	w.apply(policies)
	w.awaitLog(envoy, wire.ErrOlder.Error())
	if closed, open := pass("/closed", 4), pass("/open", 4); closed != 0 || open != 4 {
		t.Errorf("beside a control plane that is too new %d and %d passed, the ladder says 0 and 4", closed, open)
	}
	if n := strings.Count(envoy.Stderr.String(), wire.ErrOlder.Error()); n != 1 {
		t.Errorf("the filter says so %d times", n)
	}
	w.awaitNodes("envoy-1", wire.ErrOlder.Error())

	// A control plane that still speaks the filter's protocol takes over, with all used tokens.
	w.controlPlane.Stop()
	next := nextControlPlane(t)
	w.serve.Binary, w.serve.DataDir = next, data
	w.startControlPlane()
	w.awaitApplied(w.apply(policies + more))
	passes()
	before := w.late()
	closed, added := pass("/closed", 20), pass("/more", 4)
	if closed > 8 || added > 2 || added < 2-(w.late()-before) {
		t.Errorf("after the upgrade %d and %d passed, want at most the 8 that were left, and 2", closed, added)
	}

	// The build before cannot read its data.
	w.controlPlane.Stop()
	w.serve.Binary = today
	old, err := stack.LaunchControlPlane(w.serve)
	if err != nil {
		t.Fatal(err)
	}
	defer old.Kill()
	w.await("the build before to end", func(context.Context) error {
		if old.Running() {
			return errors.New("it runs")
		}
		return nil
	})
	if said := old.Stderr.String() + old.Stdout.String(); !strings.Contains(said, wire.ErrNewerStore.Error()) {
		t.Errorf("it ends with %s", said)
	}

	// It serves filters of its own protocol alone.
	w.serve.DataDir = t.TempDir()
	w.startControlPlane()
	w.apply(policies)
	module := nextFilter(t)
	w.launch = func(o *stack.EnvoyOptions) { o.Wasm = module }
	w.startEnvoy("newer")
	envoy = w.envoys[1]
	w.awaitLog(envoy, wire.ErrNewer.Error())
	w.awaitNodes("newer", wire.ErrNewer.Error())

	// The next version's control plane takes over this store, and serves both filters: together
	// they get the tokens of one bucket, no more and no fewer.
	w.controlPlane.Stop()
	w.serve.Binary = next
	w.startControlPlane()
	w.awaitApplied(w.apply(policies + more))
	total, before := int64(0), w.late()
	for i := range w.envoys {
		envoy = w.envoys[i]
		w.await("requests to pass", func(context.Context) error {
			passed := pass("/closed", 1)
			total += passed
			if passed == 0 || total < int64(5*(i+1)) {
				return fmt.Errorf("%d have passed", total)
			}
			return nil
		})
	}
	if total += pass("/closed", 20); total > 10 || total < 10-(w.late()-before) {
		t.Errorf("%d of 10 passed at the filters of both versions", total)
	}
}

// awaitNodes waits until `weir get nodes` shows texts.
func (w *world) awaitNodes(texts ...string) {
	w.t.Helper()
	w.await(fmt.Sprintf("weir get nodes to show %q", texts), func(ctx context.Context) error {
		command := exec.CommandContext(ctx, controlPlanePath, "get", "nodes")
		command.Env = append(command.Environ(), "WEIR_SERVER="+w.controlPlane.URL(), "WEIR_TOKEN="+adminToken)
		output, err := command.CombinedOutput()
		for _, text := range texts {
			if err == nil && !strings.Contains(string(output), text) {
				err = fmt.Errorf("it shows\n%s", output)
			}
		}
		return err
	})
}
