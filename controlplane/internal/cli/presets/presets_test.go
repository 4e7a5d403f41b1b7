package presets_test

import (
	"strings"
	"testing"

	"github.com/weir-proxy/weir/controlplane/internal/cli/presets"
	"github.com/weir-proxy/weir/controlplane/internal/rules/policydoc"
	"github.com/weir-proxy/weir/controlplane/internal/rules/promises"
)

// Each preset has a line with its purpose, and is a valid policy set. `weir check` has no warning
// for it, and no request is without a limit.
func TestPresetsAreWithoutWarning(t *testing.T) {
	if len(presets.List()) < 5 {
		t.Fatalf("%d presets", len(presets.List()))
	}
	for _, p := range presets.List() {
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
			if strings.HasPrefix(note, "warning") || strings.HasPrefix(note, "unlimited without") {
				t.Errorf("%s: %s", p.Name, note)
			}
		}
	}
}
