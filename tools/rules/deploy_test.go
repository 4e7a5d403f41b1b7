package rules_test

import (
	"encoding/json"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

const (
	rulesFile     = "deploy/prometheus/weir.rules.yaml"
	dashboardFile = "deploy/grafana/weir.json"
)

// The pages on metrics, and those on alerts, by the half of Weir.
var (
	metricsPages = []string{"docs/reference/metrics.md", "docs/reference/metrics-control-plane.md"}
	runbooks     = []string{"docs/night/alerts.md", "docs/night/alerts-envoys.md"}
)

// alert is one of the alert rules.
type alert struct {
	Alert       string            `yaml:"alert"`
	Expr        string            `yaml:"expr"`
	For         string            `yaml:"for"`
	Labels      map[string]string `yaml:"labels"`
	Annotations map[string]string `yaml:"annotations"`
}

func alerts(t *testing.T) (all []alert) {
	t.Helper()
	var file struct {
		Groups []struct {
			Rules []alert `yaml:"rules"`
		} `yaml:"groups"`
	}
	if err := yaml.Unmarshal([]byte(read(t, rulesFile)), &file); err != nil {
		t.Fatal(err)
	}
	for _, group := range file.Groups {
		all = append(all, group.Rules...)
	}
	if len(all) < 10 {
		t.Fatalf("%s has only %d alerts", rulesFile, len(all))
	}
	return all
}

func TestPromtoolAcceptsTheRules(t *testing.T) {
	for _, arguments := range [][]string{
		{"check", "rules", "weir.rules.yaml"}, {"check", "config", "prometheus.yml"},
		{"test", "rules", "weir.rules.test.yaml"},
	} {
		command := exec.Command("promtool", arguments...)
		command.Dir = filepath.Join(root, "deploy/prometheus")
		if output, err := command.CombinedOutput(); err != nil {
			t.Errorf("promtool %s: %v (make setup installs it)\n%s", strings.Join(arguments, " "), err, output)
		}
	}
}

// Each alert says how bad it is and where to read on, is tested, and has a section of that name in
// the runbook, which has no other sections.
func TestEachAlertSaysWhatToDo(t *testing.T) {
	tests, sections, pageOf := read(t, "deploy/prometheus/weir.rules.test.yaml"), []string{}, map[string]string{}
	for _, page := range runbooks {
		for _, m := range regexp.MustCompile(`(?m)^## (Weir[A-Za-z]+)\n\n(.+)`).FindAllStringSubmatch(read(t, page), -1) {
			sections, pageOf[m[1]] = append(sections, m[1]), page
		}
	}
	var names []string
	for _, a := range alerts(t) {
		names = append(names, a.Alert)
		if want := "https://github.com/weir-proxy/weir/blob/main/" + pageOf[a.Alert] + "#" +
			strings.ToLower(a.Alert); a.Annotations["runbook_url"] != want {
			t.Errorf("%s leads to %s, not %s", a.Alert, a.Annotations["runbook_url"], want)
		}
		if !slices.Contains([]string{"critical", "warning", "info"}, a.Labels["severity"]) ||
			a.Annotations["summary"] == "" || a.Annotations["description"] == "" {
			t.Errorf("%s lacks a severity, a summary or a description", a.Alert)
		}
		if !strings.Contains(tests, "  - name: "+a.Alert+"\n") {
			t.Errorf("%s is not tested", a.Alert)
		}
		if pageOf[a.Alert] == "" {
			t.Errorf("%v have no section %s with the steps to take", runbooks, a.Alert)
		}
	}
	for _, s := range sections {
		if !slices.Contains(names, s) {
			t.Errorf("%s has a section %s, which is no alert", pageOf[s], s)
		}
	}
}

// panel is one graph of the dashboard.
type panel struct {
	Title, Type string
	Targets     []struct{ Expr string }
}

func panels(t *testing.T) []panel {
	t.Helper()
	var dashboard struct{ Panels []panel }
	if err := json.Unmarshal([]byte(read(t, dashboardFile)), &dashboard); err != nil || len(dashboard.Panels) == 0 {
		t.Fatalf("%s: %d panels, %v", dashboardFile, len(dashboard.Panels), err)
	}
	return dashboard.Panels
}

// labels are the labels of metrics that Envoy's tags make.
var labels = []string{"weir_policy", "weir_outcome", "weir_class"}

// Each metric in a graph or an alert is reported by some part, so that a renamed metric does not
// leave an empty graph.
func TestDashboardAndAlertsUseKnownMetrics(t *testing.T) {
	known := map[string]bool{}
	for _, m := range regexp.MustCompile("`(weir_[a-z_]+)").FindAllStringSubmatch(readAll(t, metricsPages), -1) {
		known[m[1]] = true
	}
	used := map[string]string{}
	for _, p := range panels(t) {
		if p.Type != "row" && len(p.Targets) == 0 {
			t.Errorf("the panel %q shows nothing", p.Title)
		}
		for _, target := range p.Targets {
			used[target.Expr] = "the panel " + p.Title
		}
	}
	for _, a := range alerts(t) {
		used[a.Expr] = a.Alert
	}
	for expr, by := range used {
		for _, name := range regexp.MustCompile(`weir_[a-z_]+`).FindAllString(withoutLabels(expr), -1) {
			for _, suffix := range []string{"_bucket", "_count", "_sum"} {
				if base, ok := strings.CutSuffix(name, suffix); ok && known[base] {
					name = base
				}
			}
			if !known[name] && !slices.Contains(labels, name) {
				t.Errorf("%s uses %s, which no page on metrics has", by, name)
			}
		}
	}
}

// withoutLabels leaves out the text between braces and quotes.
func withoutLabels(expr string) string {
	return regexp.MustCompile(`\{[^}]*\}`).ReplaceAllString(expr, "")
}

// PromQL in the dashboard is as well-formed as the alerts': promtool reads it as rules, with
// Grafana's variables filled in.
func TestDashboardExpressionsAreWellFormed(t *testing.T) {
	type rule struct {
		Record string `yaml:"record"`
		Expr   string `yaml:"expr"`
	}
	var rules []rule
	for _, p := range panels(t) {
		for _, target := range p.Targets {
			rules = append(rules, rule{"weir:checked", strings.NewReplacer("$__rate_interval", "1m", "$policy",
				".*").Replace(target.Expr)})
		}
	}
	text, err := yaml.Marshal(map[string]any{"groups": []map[string]any{{"name": "dashboard", "rules": rules}}})
	if err != nil {
		t.Fatal(err)
	}
	check := exec.Command("promtool", "check", "rules", "--lint=none", "/dev/stdin")
	check.Stdin = strings.NewReader(string(text))
	if output, err := check.CombinedOutput(); err != nil {
		t.Errorf("promtool: %v\n%s", err, output)
	}
}
