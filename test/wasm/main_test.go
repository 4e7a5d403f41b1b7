package wasm

import (
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/weir-proxy/weir/envoytest"
)

// filter is the built module, compiled once for all tests, and code its bytes.
var (
	filter *envoytest.Module
	code   []byte
)

func TestMain(m *testing.M) {
	status, err := run(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		status = 1
	}
	os.Exit(status)
}

func run(m *testing.M) (int, error) {
	var err error
	if code, err = built(); err != nil {
		return 0, err
	}
	if filter, err = envoytest.Compile(code); err != nil {
		return 0, err
	}
	defer filter.Close()
	return m.Run(), nil
}

const root = "../.."

// built returns build/weir.wasm if it is newer than all it is made from, and builds the module
// elsewhere otherwise.
func built() ([]byte, error) {
	file := filepath.Join(root, "build", "weir.wasm")
	if info, err := os.Stat(file); err == nil {
		stale, err := changedAfter(info.ModTime())
		if err != nil {
			return nil, err
		}
		if !stale {
			return os.ReadFile(file)
		}
	}
	dir, err := os.MkdirTemp("", "weir-wasm")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	file = filepath.Join(dir, "weir.wasm")
	build := exec.Command("./wasm-build.sh", "-o", file)
	build.Dir = root
	if output, err := build.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("building the filter: %w\n%s", err, output)
	}
	return os.ReadFile(file)
}

// changedAfter reports whether a source of the module is newer than built.
func changedAfter(built time.Time) (bool, error) {
	newer := false
	for _, source := range []string{"filter", "shared", "tools/tinygo", "tools/wasmgate", "wasm-build.sh", "go.mod"} {
		err := filepath.WalkDir(filepath.Join(root, source), func(name string, entry fs.DirEntry, err error) error {
			if err == nil && entry.IsDir() && strings.HasSuffix(name, "test") {
				return fs.SkipDir // A package for tests.
			}
			if err != nil || entry.IsDir() || strings.HasSuffix(name, "_test.go") {
				return err
			}
			info, err := entry.Info()
			newer = newer || err == nil && info.ModTime().After(built)
			return err
		})
		if err != nil {
			return false, err
		}
	}
	return newer, nil
}
