package native

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// The parts of the host that read what clients and the module choose do nothing undefined and
// access no byte beyond a block of memory, whatever they are given: see testdata/driver.c.
func TestPartsOfTheHostUnderTheSanitizers(t *testing.T) {
	if *emulated {
		t.Skip("the driver is compiled for this machine")
	}
	host, driver := filepath.Join(repository, "filter/native"), filepath.Join(t.TempDir(), "driver")
	run := func(name string, arguments ...string) string {
		t.Helper()
		output, err := exec.CommandContext(t.Context(), name, arguments...).CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %v\n%s", name, err, output)
		}
		return strings.TrimSpace(string(output))
	}
	abi := run("go", "list", "-C", filepath.Join(repository, "tools/native"), "-m", "-f", "{{.Dir}}",
		"github.com/envoyproxy/envoy/source/extensions/dynamic_modules")
	arguments := []string{"-std=gnu11", "-O1", "-g", "-fno-strict-aliasing", "-include", filepath.Join(host, "depth.h"),
		"-Wall", "-Wextra", "-Werror", "-fsanitize=address,undefined", "-fno-sanitize-recover=all",
		"-I", "testdata", "-I", host, "-isystem", filepath.Join(abi, "abi"), "-o", driver, "testdata/driver.c"}
	for _, part := range []string{"json.c", "headers.c", "memory.c", "shared_data.c"} {
		arguments = append(arguments, filepath.Join(host, part))
	}
	run("clang-19", append(arguments, "-lpthread")...)
	for _, seed := range []string{"1", "2", "3"} {
		t.Logf("seed %s: %s", seed, run(driver, seed, "50000"))
	}
}
