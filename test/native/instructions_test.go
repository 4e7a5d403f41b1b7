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
// takes Envoy's place, whose own work is not in them: see testdata/envoy.c. The bounds are five
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
	const none = `"headers": {"standard": "off", "legacy": "off"}, `
	for _, c := range []struct {
		name, policies, settings string
		passes                   bool
		headers, atMost          int
	}{
		{"two headers", policies(1), "", true, 2, 27_700},
		{"no headers", policies(1), none, true, 0, 24_700},
		{"refused", `{"name": "p", "mode": "local", "partition": [], "limit": {"quota": 1, "window": "366d"}}`, "", false, 0, 32_800},
		{"5 policies", policies(5), "", true, 2, 94_600},
		{"1 policy of 1000", thousands.String() + policies(1), "", true, 2, 27_700},
	} {
		t.Run(c.name, func(t *testing.T) {
			configuration := `{"policyset": {"version": "weir/v1", "identity": {"consumer": [{"header": "x-api-key"}]}, ` +
				c.settings + `"policies": [` + c.policies + `]}}`
			const few, many = 100, 600
			before, after := countInstructions(t, configuration, few), countInstructions(t, configuration, many)
			passed, written := after.passed-before.passed, after.written-before.written
			if c.passes != (passed == many-few) || !c.passes && passed != 0 || written != c.headers*passed {
				t.Errorf("of %d requests %d passed, with %d headers", many-few, passed, written)
			}
			of := (after.instructions - before.instructions) / (many - few)
			t.Logf("%d instructions", of)
			if of > c.atMost {
				t.Errorf("%d instructions, at most %d may run", of, c.atMost)
			}
		})
	}
}

// work has the figures of a run.
type work struct{ instructions, passed, written int }

// countInstructions sends requests to build/libweir.so under valgrind.
func countInstructions(t *testing.T, configuration string, requests int) (w work) {
	t.Helper()
	driver := compile(t, "envoy.c", []string{"-O1", "-rdynamic"}, nil)
	output := runProgram(t, "valgrind", "--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/null",
		driver, filepath.Join(repository, "build/libweir.so"), configuration, strconv.Itoa(requests))
	refs := regexp.MustCompile(`I +refs: +([0-9,]+)`).FindStringSubmatch(output)
	if refs == nil {
		t.Fatalf("valgrind counts nothing:\n%s", output)
	}
	var answered int
	w.instructions, _ = strconv.Atoi(strings.ReplaceAll(refs[1], ",", ""))
	const counts = "%d passed, %d answered, %d headers written"
	line := regexp.MustCompile(strings.ReplaceAll(counts, "%d", `\d+`)).FindString(output)
	if _, err := fmt.Sscanf(line, counts, &w.passed, &answered, &w.written); err != nil {
		t.Fatalf("%v:\n%s", err, output)
	}
	return w
}
