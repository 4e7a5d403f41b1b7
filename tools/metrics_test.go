package tools_test

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// Every metric that the code has is on the page, and the page has none that the code lacks.
func TestThePageNamesEveryMetric(t *testing.T) {
	read := func(name string) string {
		content, err := os.ReadFile("../" + name)
		if err != nil {
			t.Fatal(err)
		}
		return string(content)
	}
	want := map[string]bool{"weir_decisions": true}
	rows := regexp.MustCompile(`(?:\{(?:name: )?|Name += )"([a-z_.]+)"`)
	filter := read("filter/internal/plugin/metrics.go") + read("filter/internal/plugin/flights.go") +
		read("filter/internal/plugin/guards.go")
	for _, m := range rows.FindAllStringSubmatch(filter, -1) {
		want["weir_"+strings.ReplaceAll(m[1], ".", "_")] = true
	}
	plane := read("controlplane/internal/metrics/metrics.go") + read("controlplane/internal/metrics/calls.go") +
		read("controlplane/internal/metrics/quotas.go")
	for _, m := range regexp.MustCompile(`"(weir_[a-z_]+)"`).FindAllStringSubmatch(plane, -1) {
		want[m[1]] = true
	}
	if len(want) < 30 {
		t.Fatalf("only %d metrics were found in the code", len(want))
	}
	page := read("docs/metrics.md")
	for name := range want {
		if !strings.Contains(page, "`"+name+"`") && !strings.Contains(page, "`"+name+"{") {
			t.Errorf("docs/metrics.md lacks %s", name)
		}
	}
	for _, m := range regexp.MustCompile("`(weir_[a-z_]+)").FindAllStringSubmatch(page, -1) {
		if !want[strings.TrimSuffix(m[1], "_count")] {
			t.Errorf("docs/metrics.md names %s, which nothing reports", m[1])
		}
	}
}
