//go:build !noconsole

package console_test

import (
	"bufio"
	"crypto/sha256"
	"encoding/hex"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weir-proxy/weir/controlplane/internal/serve/console"
)

// most is how many bytes the whole console may have as it is sent.
const most = 250 << 10

func TestTheConsoleIsSmall(t *testing.T) {
	files, err := console.Files()
	if err != nil {
		t.Fatal(err)
	}
	if len(files) < 3 || len(files[console.Index].Body) == 0 {
		t.Fatalf("there are %d files", len(files))
	}
	size := 0
	for name, file := range files {
		size += len(file.Zipped)
		if file.Lasting != (name != console.Index) {
			t.Errorf("%s: may be kept: %v", name, file.Lasting)
		}
	}
	if size > most {
		t.Errorf("the console has %d bytes compressed, %d are allowed", size, most)
	}
}

// The files are built from the sources as they are: make console has run since the last change.
// That the sources build these very files is a test of make test-console, which has Node.
func TestTheFilesAreBuiltFromTheSources(t *testing.T) {
	const sources = "../../../../console"
	f, err := os.Open("sources.sha256")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	sums := map[string]string{}
	for lines := bufio.NewScanner(f); lines.Scan(); {
		sum, name, _ := strings.Cut(lines.Text(), "  ")
		sums[name] = sum
	}
	err = filepath.WalkDir(filepath.Join(sources, "src"), func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || d.Name() == "api.gen.ts" {
			return err
		}
		name, err := filepath.Rel(sources, path)
		if name = filepath.ToSlash(name); sums[name] == "" {
			t.Errorf("console/%s is newer than the built files: run make console", name)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range sums {
		text, err := os.ReadFile(filepath.Join(sources, filepath.FromSlash(name)))
		sum := sha256.Sum256(text)
		if err != nil || hex.EncodeToString(sum[:]) != want {
			t.Errorf("console/%s is not the file that the console was built from: run make console (%v)", name, err)
		}
	}
}
