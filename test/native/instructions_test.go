package native

import (
	"fmt"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"testing"
)

// A request runs at most so many instructions in libweir.so, however fast the machine is. A program
// takes Envoy's place, whose own work is not in them: see testdata/envoy.c. The bounds are three
// percent above the figures of the commit that set them.
func TestInstructionsOfARequest(t *testing.T) {
	if *emulated || runtime.GOARCH != "amd64" {
		t.Skip("the bounds are those of x86-64")
	}
	const policy = `{"name": "p%d", "mode": "local", "partition": ["consumer"], "limit": {"quota": 1000000000, "window": "1s"}}`
	policies := func(n int) string {
		all := make([]string, n)
		for i := range all {
			all[i] = fmt.Sprintf(policy, i)
		}
		return strings.Join(all, ", ")
	}
	const elsewhere = `{"name": "e%d", "mode": "local", "match": {"paths": ["/e/%d"]}, "partition": [], ` +
		`"limit": {"quota": 1, "window": "1m"}}`
	var thousands strings.Builder
	for i := range 999 {
		fmt.Fprintf(&thousands, elsewhere+", ", i, i)
	}
	envoy := compile(t, "envoy.c", []string{"-O1", "-rdynamic"}, nil)
	const none = `"headers": {"standard": "off", "legacy": "off"}, `
	for _, c := range []struct {
		name, policies, settings string
		passed, headers, atMost  int
	}{
		{"two headers", policies(1), "", 1000, 2, 27_100},
		{"no headers", policies(1), none, 1000, 0, 24_100},
		{"refused", `{"name": "p", "mode": "local", "partition": [], "limit": {"quota": 1, "window": "366d"}}`, "", 0, 0, 32_100},
		{"5 policies", policies(5), "", 1000, 2, 92_300},
		{"1 policy of 1000", thousands.String() + policies(1), "", 1000, 2, 27_200},
	} {
		t.Run(c.name, func(t *testing.T) {
			configuration := `{"policyset": {"version": "weir/v1", "identity": {"consumer": [{"header": "x-api-key"}]}, ` +
				c.settings + `"policies": [` + c.policies + `]}}`
			const requests = 1000
			w := countInstructions(t, envoy, configuration, requests)
			if w.passed != c.passed || w.written != c.headers*w.passed {
				t.Errorf("of %d requests %d passed, with %d headers", requests, w.passed, w.written)
			}
			t.Logf("%d instructions", w.instructions/requests)
			if w.instructions > c.atMost*requests {
				t.Errorf("%d instructions, at most %d may run", w.instructions/requests, c.atMost)
			}
		})
	}
}

// work has the figures of a run.
type work struct{ instructions, passed, written int }

// countInstructions lets a program in Envoy's place send requests to build/libweir.so, and counts
// the instructions that they take.
func countInstructions(t *testing.T, envoy, configuration string, requests int) (w work) {
	t.Helper()
	output := runProgram(t, "valgrind", "--tool=callgrind", "--toggle-collect=send_request",
		"--callgrind-out-file=/dev/null", envoy, filepath.Join(repository, "build/libweir.so"), configuration,
		strconv.Itoa(requests))
	refs := regexp.MustCompile(`Collected : ([0-9]+)`).FindStringSubmatch(output)
	if refs == nil {
		t.Fatalf("valgrind counts nothing:\n%s", output)
	}
	w.instructions, _ = strconv.Atoi(refs[1])
	const counts = "%d passed, %d answered, %d headers written"
	line := regexp.MustCompile(strings.ReplaceAll(counts, "%d", `\d+`)).FindString(output)
	var answered int
	if _, err := fmt.Sscanf(line, counts, &w.passed, &answered, &w.written); err != nil {
		t.Fatalf("%v:\n%s", err, output)
	}
	return w
}
