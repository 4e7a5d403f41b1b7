package rules_test

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// Every metric that the code has is on the page, and the page has none that the code lacks.
func TestThePageNamesEveryMetric(t *testing.T) {
	read := func(name string) string {
		content, err := os.ReadFile("../../" + name)
		if err != nil {
			t.Fatal(err)
		}
		return string(content)
	}
	want := map[string]bool{"weir_decisions": true}
	rows := regexp.MustCompile(`(?:\{(?:name: )?|Name += )"([a-z_.]+)"`)
	filter := read("filter/internal/envoy/plugin/metrics.go") + read("filter/internal/envoy/plugin/flights.go") +
		read("filter/internal/envoy/plugin/guards.go")
	for _, m := range rows.FindAllStringSubmatch(filter, -1) {
		want["weir_"+strings.ReplaceAll(m[1], ".", "_")] = true
	}
	// The native host knows the names that the module defines late, and has a counter of faults.
	for _, m := range regexp.MustCompile(`(?:\{[A-Z]+, |name = )"weir\.([a-z_.]+)"`).
		FindAllStringSubmatch(read("filter/native/metrics.c"), -1) {
		name := "weir_" + strings.ReplaceAll(m[1], ".", "_")
		if name != "weir_faults" && !want[name] {
			t.Errorf("filter/native/metrics.c names %s, which the filter does not have", m[1])
		}
		want[name] = true
	}
	const metrics = "controlplane/internal/observe/metrics/"
	plane := read(metrics+"metrics.go") + read(metrics+"calls.go") + read(metrics+"quotas.go") +
		read(metrics+"connections.go") + read(metrics+"overrides.go") + read(metrics+"penalties.go")
	for _, m := range regexp.MustCompile(`"(weir_[a-z_]+)"`).FindAllStringSubmatch(plane, -1) {
		want[m[1]] = true
	}
	if len(want) < 30 {
		t.Fatalf("only %d metrics were found in the code", len(want))
	}
	page := readAll(t, metricsPages)
	for name := range want {
		if !strings.Contains(page, "`"+name+"`") && !strings.Contains(page, "`"+name+"{") {
			t.Errorf("the pages on metrics lack %s", name)
		}
	}
	for _, m := range regexp.MustCompile("`(weir_[a-z_]+)").FindAllStringSubmatch(page, -1) {
		if !want[strings.TrimSuffix(m[1], "_count")] {
			t.Errorf("the pages on metrics name %s, which nothing reports", m[1])
		}
	}
}

// Each metric that another page names, or the beginning of some, like weir_polls_, is on the page
// on metrics.
func TestOtherPagesNameKnownMetrics(t *testing.T) {
	known := map[string]bool{"weir_client": true} // A module in Python.
	for _, m := range regexp.MustCompile("`(weir_[a-z_]+)").FindAllStringSubmatch(readAll(t, metricsPages), -1) {
		known[m[1]] = true
	}
	isKnown := func(name string) bool {
		for _, suffix := range []string{"_bucket", "_count", "_sum", ""} {
			if base := strings.TrimSuffix(name, suffix); known[base] {
				return true
			}
		}
		for one := range known {
			if strings.HasSuffix(name, "_") && strings.HasPrefix(one, name) {
				return true
			}
		}
		return false
	}
	for _, page := range append(manualPages(t), "README.md", "RATIONALE.md") {
		if slices.Contains(metricsPages, page) {
			continue
		}
		for _, name := range regexp.MustCompile(`\bweir_[a-z_]+`).FindAllString(read(t, page), -1) {
			if !isKnown(name) {
				t.Errorf("%s names %s, which no page on metrics has", page, name)
			}
		}
	}
}
