package native

import (
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// The parts of the host that read what clients and the module choose do nothing undefined and
// access no byte beyond a block of memory, whatever they are given: see testdata/driver.c.
func TestPartsOfTheHostUnderTheSanitizers(t *testing.T) {
	drive(t, "driver.c", "address,undefined", 50000, "json.c", "headers.c", "memory.c", "shared_data.c")
}

// Threads that call clusters at once share no memory with the main thread beyond the hand-over, and
// each call has one answer: see testdata/calls.c.
func TestCallsUnderTheSanitizers(t *testing.T) {
	parts := []string{"calls.c", "headers.c", "memory.c"}
	drive(t, "calls.c", "thread", 5000, parts...)
	drive(t, "calls.c", "address,undefined", 5000, parts...)
}

// drive runs a program of testdata, compiled with parts of the host under sanitizers, for some
// rounds with three seeds.
func drive(t *testing.T, program, sanitizers string, rounds int, parts ...string) {
	t.Helper()
	if *emulated {
		t.Skip("the program is compiled for this machine")
	}
	driver := compile(t, program, []string{"-O1", "-g", "-fsanitize=" + sanitizers, "-fno-sanitize-recover=all"}, parts)
	for _, seed := range []string{"1", "2", "3"} {
		t.Logf("%s, seed %s: %s", sanitizers, seed, runProgram(t, driver, seed, strconv.Itoa(rounds)))
	}
}

// compile compiles a program of testdata with parts of the host, and returns its file.
func compile(t *testing.T, program string, flags, parts []string) string {
	t.Helper()
	host, file := filepath.Join(repository, "filter/native"), filepath.Join(t.TempDir(), "program")
	abi := runProgram(t, "go", "list", "-C", filepath.Join(repository, "tools/native"), "-m", "-f", "{{.Dir}}",
		"github.com/envoyproxy/envoy/source/extensions/dynamic_modules")
	arguments := append([]string{"-std=gnu11", "-fno-strict-aliasing", "-include", filepath.Join(host, "depth.h"),
		"-Wall", "-Wextra", "-Werror", "-I", "testdata", "-I", host, "-isystem", filepath.Join(abi, "abi"), "-o", file,
		filepath.Join("testdata", program)}, flags...)
	for _, part := range parts {
		arguments = append(arguments, filepath.Join(host, part))
	}
	runProgram(t, "clang-19", append(arguments, "-lpthread", "-ldl")...)
	return file
}

// runProgram runs a program and returns its output.
func runProgram(t *testing.T, name string, arguments ...string) string {
	t.Helper()
	output, err := exec.CommandContext(t.Context(), name, arguments...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", name, err, output)
	}
	return strings.TrimSpace(string(output))
}
