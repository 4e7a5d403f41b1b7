package chart

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/weir-proxy/weir/test/support/kubetest"
	"github.com/weir-proxy/weir/tools/stack"
)

const page = "docs/run/kubernetes.md"

// A block is a fenced one of the page.
type block struct{ language, text string }

func pageBlocks(t *testing.T) (all []block) {
	t.Helper()
	for _, m := range regexp.MustCompile("(?s)\n```(\\w+)\n(.*?)```\n").FindAllStringSubmatch(read(t, page), -1) {
		all = append(all, block{m[1], m[2]})
	}
	if len(all) < 10 {
		t.Fatalf("%s has only %d blocks", page, len(all))
	}
	return all
}

// The steps of the page are done in their order: helm's commands are run, manifests applied, and in
// between the pods must be acceptable.
func TestThePageWorks(t *testing.T) {
	r := release{t, clusterWithKinds(t)}
	dir := t.TempDir()
	deploy, err := filepath.Abs(filepath.Join(root, "deploy"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(deploy, filepath.Join(dir, "deploy")); err != nil {
		t.Fatal(err)
	}
	commands, manifests := 0, 0
	for _, b := range pageBlocks(t) {
		switch {
		case strings.HasPrefix(b.text, "version: weir/v1"):
			if err := os.WriteFile(filepath.Join(dir, "shop.yaml"), []byte(b.text), 0o600); err != nil {
				t.Fatal(err)
			}
		case strings.HasPrefix(b.text, "apiVersion: kustomize"):
		case b.language == "yaml":
			manifests++
			r.Apply(t, b.text)
		default:
			for _, line := range strings.Split(b.text, "\n") {
				if strings.HasPrefix(line, "helm ") {
					commands++
					r.shell(dir, line)
				}
			}
		}
		if r.Get(t, "/apis/apps/v1/namespaces/weir/deployments/weir") != nil {
			r.mustAcceptPods()
		}
	}
	if commands < 8 || manifests < 6 {
		t.Errorf("%d commands and %d manifests", commands, manifests)
	}
}

// shell runs a command with the helm of the cache.
func (r release) shell(dir, line string) {
	r.t.Helper()
	command := exec.Command("bash", "-eu", "-c", line)
	command.Dir = dir
	command.Env = append(os.Environ(), "KUBECONFIG="+r.Kubeconfig, "HOME="+dir,
		"PATH="+filepath.Dir(kubetest.Program(r.t, "helm"))+":"+os.Getenv("PATH"))
	if output, err := command.CombinedOutput(); err != nil {
		r.t.Fatalf("%s: %v\n%s", line, err, output)
	}
}

// Envoy loads the configuration that the page makes of envoy.yaml.
func TestThePagesEnvoyConfigurationLoads(t *testing.T) {
	line := regexp.MustCompile(`(?m)^sed .* envoy.yaml > /tmp/envoy.yaml$`).FindString(read(t, page))
	configuration := filepath.Join(t.TempDir(), "envoy.yaml")
	command := exec.Command("bash", "-eu", "-c", strings.Replace(line, "/tmp/envoy.yaml", configuration, 1))
	command.Dir = root
	if output, err := command.CombinedOutput(); err != nil || line == "" {
		t.Fatalf("%q: %v %s", line, err, output)
	}
	text := content(t, configuration)
	for _, want := range []string{"{address: weir.weir.svc.cluster.local, port_value: 8080}",
		"{address: shop, port_value: 8081}"} {
		if !strings.Contains(text, want) {
			t.Errorf("the configuration lacks %s", want)
		}
	}
	_, body, _ := strings.Cut(text, "\nnode:")
	if strings.Count(body, "/etc/weir/plugin.wasm") != 1 {
		t.Fatal("the configuration does not load the filter of the volume")
	}
	module, err := filepath.Abs(filepath.Join(root, "build/weir.wasm"))
	if err != nil {
		t.Fatal(err)
	}
	text = strings.ReplaceAll(text, "/etc/weir/plugin.wasm", module)
	if err := os.WriteFile(configuration, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	envoy, err := stack.EnvoyBinary()
	if err != nil {
		t.Fatal(err)
	}
	validate := exec.Command(envoy, "--mode", "validate", "--config-path", configuration)
	validate.Env = append(os.Environ(), "WEIR_NODE_TOKEN=a-token-of-the-tests")
	if output, err := validate.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, output)
	}
}
