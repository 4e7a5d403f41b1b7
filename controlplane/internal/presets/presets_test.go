package presets_test

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/weir-proxy/weir/controlplane/internal/policydoc"
	"github.com/weir-proxy/weir/controlplane/internal/presets"
	"github.com/weir-proxy/weir/controlplane/internal/promises"
)

// Each preset says in a line what it is for, is a valid policy set, and `weir check` has no warning
// about it.
func TestPresetsAreWithoutWarning(t *testing.T) {
	if len(presets.All) < 5 {
		t.Fatalf("%d presets", len(presets.All))
	}
	for _, p := range presets.All {
		if !strings.HasPrefix(p.Text, "# "+p.About+"\n") || len(p.About) > 100 {
			t.Errorf("%s is about %q", p.Name, p.About)
		}
		set, err := policydoc.Load([]byte(p.Text), policydoc.YAML)
		if err != nil {
			t.Errorf("%s: %v", p.Name, err)
			continue
		}
		notes := promises.NotesOf(set)
		for _, one := range set.Policies {
			notes = append(notes, promises.Of(one, set, 10, 0).Notes...)
		}
		for _, note := range notes {
			if strings.Contains(note, "warning") {
				t.Errorf("%s: %s", p.Name, note)
			}
		}
	}
}

// The preset of a URL shortener is the example that README runs, but for the line that says how to
// try it.
func TestTheExampleIsAPreset(t *testing.T) {
	example, err := os.ReadFile("../../../examples/url-shortener.yaml")
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(string(example), "\n")
	for _, p := range presets.All {
		is := strings.Split(p.Text, "\n")
		if p.Name == "url-shortener" && is[0] == lines[0] && slices.Equal(is[2:], lines[2:]) {
			return
		}
	}
	t.Error("examples/url-shortener.yaml and the preset differ")
}
