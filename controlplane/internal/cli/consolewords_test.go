package cli

import (
	"maps"
	"os"
	"regexp"
	"strings"
	"testing"
)

// The console and weir why give a refusal the same words.
func TestTheConsoleUsesTheSameWords(t *testing.T) {
	source, err := os.ReadFile("../../../console/src/screens/callers.tsx")
	if err != nil {
		t.Fatal(err)
	}
	entry := regexp.MustCompile(`(?m)^  (\w+): (?:'([^']*)'|"([^"]*)"),$`)
	for name, want := range map[string]map[string]string{"reasons": reasons, "sources": sources} {
		_, rest, _ := strings.Cut(string(source), "const "+name+": Record<string, string> = {")
		block, _, _ := strings.Cut(rest, "\n}")
		got := map[string]string{}
		for _, m := range entry.FindAllStringSubmatch(block, -1) {
			got[m[1]] = m[2] + m[3]
		}
		if !maps.Equal(got, want) {
			t.Errorf("the %s of callers.tsx differ from weir why:\n%q\n%q", name, got, want)
		}
	}
}
