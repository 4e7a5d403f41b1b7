// Package chart tests the Helm chart and the base for kustomize: rendered against golden files, and
// installed, upgraded, rolled back and uninstalled in a Kubernetes API. make test-chart runs it.
package chart

import (
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/weir-proxy/weir/test/support/kubetest"
)

const (
	root  = "../.."
	chart = root + "/deploy/helm/weir"
)

var rewrite = flag.Bool("write", false, "write the golden files and deploy/kustomize/weir.yaml anew")

// run runs a program of the cache, without the user's settings, and returns its output.
func run(t *testing.T, kubeconfig, program string, arguments ...string) (output, complaints string, err error) {
	t.Helper()
	command := exec.Command(kubetest.Program(t, program), arguments...)
	command.Env = append(os.Environ(), "KUBECONFIG="+kubeconfig, "HELM_NAMESPACE=weir", "HOME="+os.TempDir())
	var out, complain strings.Builder
	command.Stdout, command.Stderr = &out, &complain
	err = command.Run()
	return out.String(), complain.String(), err
}

// render returns the objects that the chart makes of values, without a cluster.
func render(t *testing.T, arguments ...string) string {
	t.Helper()
	output, complaints, err := run(t, "", "helm", append([]string{"template", "weir", chart}, arguments...)...)
	if err != nil {
		t.Fatalf("helm template %v: %v\n%s", arguments, err, complaints)
	}
	return output
}

func TestTheChartIsCleanUnderLint(t *testing.T) {
	values, err := filepath.Glob("testdata/values/*.yaml")
	if err != nil || len(values) < 4 {
		t.Fatal(values, err)
	}
	for _, file := range append(values, filepath.Join(chart, "values.yaml")) {
		if output, complaints, err := run(t, "", "helm", "lint", "--strict", chart, "-f", file); err != nil {
			t.Errorf("%s: %v\n%s%s", file, err, output, complaints)
		}
	}
}

func TestRenderedChartsAreTheGoldenFiles(t *testing.T) {
	values, err := filepath.Glob("testdata/values/*.yaml")
	if err != nil || len(values) < 4 {
		t.Fatal(values, err)
	}
	for _, file := range values {
		golden := filepath.Join("testdata/golden", filepath.Base(file))
		mustBe(t, golden, render(t, "-f", file))
	}
}

// mustBe compares with a golden file, or writes it with -write.
func mustBe(t *testing.T, path, got string) {
	t.Helper()
	if *rewrite {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if string(want) != got {
		t.Errorf("%s differs from the chart: go test ./test/chart -run %s -write, then look at the difference",
			path, t.Name())
	}
}

// The chart uses the rules and the dashboard of deploy/, and no copies.
func TestMonitoringIsThatOfDeploy(t *testing.T) {
	objects, err := kubetest.Parse(render(t, "--set",
		"prometheusRule.enabled=true,dashboard.enabled=true,serviceMonitor.enabled=true"))
	if err != nil {
		t.Fatal(err)
	}
	var rules any
	if err := yaml.Unmarshal([]byte(read(t, "deploy/prometheus/weir.rules.yaml")), &rules); err != nil {
		t.Fatal(err)
	}
	seen := 0
	for _, o := range objects {
		switch {
		case o.Kind() == "PrometheusRule":
			seen++
			if !reflect.DeepEqual(plain(t, o["spec"]), plain(t, rules)) {
				t.Error("the PrometheusRule has other rules than deploy/prometheus/weir.rules.yaml")
			}
		case o.Kind() == "ConfigMap":
			seen++
			data, _ := o["data"].(map[string]any)
			if data["weir.json"] != read(t, "deploy/grafana/weir.json") {
				t.Error("the dashboard is not deploy/grafana/weir.json")
			}
		case o.Kind() == "ServiceMonitor":
			seen++
		}
	}
	if seen != 3 {
		t.Errorf("%d of 3 objects for monitoring", seen)
	}
	for file, want := range map[string]string{"weir.rules.yaml": "../../../prometheus/weir.rules.yaml",
		"weir.json": "../../../grafana/weir.json"} {
		if got, err := os.Readlink(filepath.Join(chart, "files", file)); got != want {
			t.Errorf("files/%s must be a link to %s, so that there is one source: %q %v", file, want, got, err)
		}
	}
}

// plain returns a value after a round trip, in which numbers and maps have the same types.
func plain(t *testing.T, v any) (same any) {
	t.Helper()
	text, err := yaml.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	if err := yaml.Unmarshal(text, &same); err != nil {
		t.Fatal(err)
	}
	return same
}

func read(t *testing.T, path string) string {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(root, path))
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}

func TestWrongValuesAreRefusedWithTheReason(t *testing.T) {
	for values, want := range map[string]string{
		"replicas=two": "at '/replicas': got string",
		"replicas=2": "the embedded store serves one replica only; set redis.existingSecret or " +
			"redis.url",
		"image.tga=1":                    "'tga' not allowed",
		"redis.url=http://redis":         "at '/redis/url'",
		"istio.failStrategy=FAIL_SOFT":   "at '/istio/failStrategy'",
		"istio.kind=EnvoyFilter":         "at '/istio/kind'",
		"envoyGateway.enabled=true":      "at '/envoyGateway/targetRefs': minItems",
		"env.PATH=/bin":                  "'PATH' does not match",
		"policyset.files.notes\\.txt=hi": "'notes.txt' does not match",
		"policyset.nodes=25":             "at '/policyset/nodes'",
		"drain=5":                        "at '/drain'",
	} {
		_, complaints, err := run(t, "", "helm", "template", "weir", chart, "--set", values)
		if err == nil || !strings.Contains(complaints, want) {
			t.Errorf("%s is answered with %v, want %q in\n%s", values, err, want, complaints)
		}
	}
}

// Each value is explained, and each setting that the chart gives exists.
func TestTheChartKnowsTheSettingsThatThereAre(t *testing.T) {
	const settings = "controlplane/internal/app/settings/"
	flags := read(t, settings+"settings.go") + read(t, settings+"listen.go")
	names := regexp.MustCompile(`WEIR_[A-Z_]+`).FindAllString(read(t, "deploy/helm/weir/templates/deployment.yaml"), -1)
	if len(names) < 8 {
		t.Fatal(names)
	}
	for _, name := range names {
		if !strings.Contains(flags, `env:"`+name+`"`) {
			t.Errorf("weir serve does not know %s", name)
		}
	}
}

// The base for kustomize is rendered from the chart.
func TestTheBaseForKustomizeIsTheChart(t *testing.T) {
	text := render(t, "-f", filepath.Join(root, "deploy/kustomize/values.yaml"))
	text = regexp.MustCompile(`(?m)^ +(helm\.sh/chart|app\.kubernetes\.io/managed-by): .*\n`).ReplaceAllString(text, "")
	mustBe(t, filepath.Join(root, "deploy/kustomize/weir.yaml"), text)
}
