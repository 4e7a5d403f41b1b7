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
	"strings"
	"testing"

	"github.com/weir-proxy/weir/shared/wire"
	"github.com/weir-proxy/weir/tools/stack"
)

const protocolFile = "shared/wire/protocol.go"

// raiseProtocol returns this tree's text of the protocol with the next version's number.
func raiseProtocol(t *testing.T, oldest int) string {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(repository, protocolFile))
	if err != nil {
		t.Fatal(err)
	}
	text := string(content)
	for name, change := range map[string][2]int{
		"Protocol": {wire.Protocol, wire.Protocol + 1}, "Oldest": {wire.Oldest, oldest},
	} {
		line := "const " + name + " = %d\n"
		before, after := fmt.Sprintf(line, change[0]), fmt.Sprintf(line, change[1])
		if !strings.Contains(text, before) {
			t.Fatalf("%s has no %q", protocolFile, before)
		}
		text = strings.Replace(text, before, after, 1)
	}
	return text
}

// build runs a command that builds a part of the tree.
func build(t *testing.T, dir, name string, args ...string) {
	t.Helper()
	command := exec.Command(name, args...)
	command.Dir = dir
	if output, err := command.CombinedOutput(); err != nil {
		t.Fatalf("cannot build with %s: %v\n%s", name, err, output)
	}
}

// nextControlPlane builds the control plane of this tree as of the next protocol, which reads
// filters and stores from the oldest one on.
func nextControlPlane(t *testing.T, oldest int) (binary string) {
	t.Helper()
	source, err := filepath.Abs(filepath.Join(repository, protocolFile))
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	changed, overlay := filepath.Join(dir, "protocol.go"), filepath.Join(dir, "overlay")
	replace, err := json.Marshal(map[string]any{"Replace": map[string]string{source: changed}})
	err = errors.Join(err, os.WriteFile(changed, []byte(raiseProtocol(t, oldest)), 0o600),
		os.WriteFile(overlay, replace, 0o600))
	if err != nil {
		t.Fatal(err)
	}
	binary = filepath.Join(dir, "weir")
	build(t, repository, "go", "build", "-buildvcs=false", "-overlay", overlay, "-o", binary, ".")
	return binary
}

// nextFilter builds the filter of this tree as of the next protocol, from a copy: TinyGo takes no
// overlay.
func nextFilter(t *testing.T) (module string) {
	t.Helper()
	dir := t.TempDir()
	for _, part := range []string{"filter", "shared", "tools/tinygo", "tools/wasmgate"} {
		if err := os.CopyFS(filepath.Join(dir, part), os.DirFS(filepath.Join(repository, part))); err != nil {
			t.Fatal(err)
		}
	}
	for _, file := range []string{"go.mod", "go.sum", "wasm-build.sh"} {
		content, err := os.ReadFile(filepath.Join(repository, file))
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, file), content, 0o700)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	err := os.WriteFile(filepath.Join(dir, protocolFile), []byte(raiseProtocol(t, wire.Oldest)), 0o600)
	if err != nil {
		t.Fatal(err)
	}
	module = filepath.Join(dir, "weir.wasm")
	build(t, dir, "./wasm-build.sh", "-o", module)
	return module
}

// A filter and a control plane that do not speak each other's protocol: requests are decided by the
// failure ladder, and the log, the list of nodes and the end of `weir serve` say which side to
// upgrade. With builds that do, all is as before, and nothing was lost.
func TestOtherProtocolsAreNotTakenForThisOne(t *testing.T) {
	const policies = `
version: weir/v1
policies:
  - {name: closed, match: {paths: [/closed]}, partition: [], limit: {quota: 10, window: 24h}, mode: strict, on_failure: [deny]}
  - {name: open, match: {paths: [/open]}, partition: [], limit: {quota: 10, window: 24h}, mode: strict, on_failure: [allow]}
`
	const more = `  - {name: more, match: {paths: [/more]}, partition: [], limit: {quota: 2, window: 24h}}
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
	w.serve.Binary, w.serve.DataDir = nextControlPlane(t, wire.Protocol+1), t.TempDir()
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
	w.serve.Binary, w.serve.DataDir = nextControlPlane(t, wire.Oldest), data
	w.startControlPlane()
	w.awaitApplied(w.apply(policies + more))
	passes()
	if closed, more := pass("/closed", 20), pass("/more", 4); closed > 8 || more != 2 {
		t.Errorf("after the upgrade %d and %d passed, want at most the 8 that were left, and 2", closed, more)
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
