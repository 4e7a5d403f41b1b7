package cli_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weir-proxy/weir/controlplane/internal/cli"
)

// The pages on migration show for each source a configuration, which is a file of the examples, and
// the policies that the import writes. The first line of a block names the file or the command.
func TestThePagesOnMigrationShowRealImports(t *testing.T) {
	for _, page := range []string{"migration.md", "migration-envoy.md"} {
		t.Run(page, func(t *testing.T) { checkImports(t, "../../../docs/start/"+page) })
	}
}

// checkImports compares the blocks of a page with the files and the imports that they show.
func checkImports(t *testing.T, name string) {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	page := string(text)
	example, shown := "", 0
	for _, block := range strings.Split(page, "```") {
		_, rest, _ := strings.Cut(block, "\n")
		first, _, _ := strings.Cut(rest, "\n")
		first = strings.TrimPrefix(first, "# ")
		var want string
		if command, found := strings.CutPrefix(first, "weir import "); found {
			shown++
			want = "# " + first + "\n" + runImport(t, strings.Fields(command), example)
		} else if strings.HasPrefix(first, "examples/") {
			example = first
			file, err := os.ReadFile(filepath.Join("../../..", first))
			if err != nil {
				t.Fatal(err)
			}
			want = "# " + first + "\n" + string(file)
		} else {
			continue
		}
		if rest == want {
			continue
		}
		page = strings.Replace(page, rest, want, 1)
		if os.Getenv("WEIR_UPDATE_GOLDEN") == "" {
			t.Errorf("the page should show\n%s\nand shows\n%s", want, rest)
		}
	}
	if shown < 1 {
		t.Error("the page shows no import")
	}
	if os.Getenv("WEIR_UPDATE_GOLDEN") != "" {
		if err := os.WriteFile(name, []byte(page), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// runImport imports an example, of which nothing may be left out.
func runImport(t *testing.T, command []string, example string) string {
	t.Helper()
	t.Chdir("../../..")
	defer t.Chdir("controlplane/internal/cli")
	var out, verdicts bytes.Buffer
	args := append(append([]string{"import"}, command...), example)
	if code := cli.Main(args, cli.Streams{Out: &out, Err: &verdicts}, cli.Build{Version: "v0.0.0-test"}); code != 0 {
		t.Errorf("weir %s: exit code %d\n%s", strings.Join(args, " "), code, verdicts.String())
	}
	return out.String()
}
