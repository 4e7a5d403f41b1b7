package main

import (
	"fmt"
	"slices"

	"github.com/weir-proxy/weir/test/figures"
)

const (
	pageName  = "measured/tested.md"
	fileName  = "measured/tested.json"
	beginMark = "<!-- written by make test-everything -->\n"
	endMark   = "<!-- end of suites -->\n"
)

// suite is a target of the Makefile that tests something, and the subject of its tests.
type suite struct{ target, tests string }

// suites are all targets that test, the fast targets first. A test compares them with the Makefile.
var suites = []suite{
	{"test", "all tests that need no further engine: units, races, fleets in virtual time, Envoy with Redis"},
	{"test-stores", "the store on Redis 7.0, Redis 8.0 and Valkey 8.1; the refusal of Redis 6.0"},
	{"matrix", "the filter in each supported version of Envoy"},
	{"test-native", "the native host: faults, end-to-end tests, each Envoy that has it; the benchmark's contestants"},
	{"test-arm64", "the filter in Envoy for arm64, and the control plane of the image for arm64, under qemu"},
	{"test-images", "images and release files: built twice, pushed, pulled, run"},
	{"test-install", "a release on an empty Debian 12 and 13, from nothing to the first refusal, and the clients"},
	{"test-compose", "the Dockerfile and docker-compose.yml with Docker's engine and Compose"},
	{"test-chart", "the Helm chart with a Kubernetes API server"},
	{"test-pods", "the pods of the chart and of Envoy Gateway under a kubelet"},
	{"test-mesh", "both hosts of the filter under Istio and Envoy Gateway"},
	{"test-console", "the console and the manual in a browser"},
	{"mutants", "changes of the arithmetic that a test must notice"},
	{"million", "a million consumers and ten thousand policies"},
	{"flood", "ten million keys through one Envoy"},
	{"simulate", "twenty thousand fleets in virtual time"},
	{"chaos", "broken processes, connections and clocks under load"},
	{"test-chaos", "faults and changes drawn at random for an hour"},
	{"test-busy", "`make test` beside as many busy loops as there are processors"},
}

// outcome is the last run of a target.
type outcome struct {
	Target string `json:"target"`
	Passed bool   `json:"passed"`
	figures.Facts
}

func (o outcome) result() string {
	if o.Passed {
		return "passed"
	}
	return "failed"
}

// report has the last run of each target that has run.
type report struct {
	Outcomes []outcome `json:"outcomes"`
}

// replaceOutcomes returns the report with these runs in place of older runs of their targets.
func (r report) replaceOutcomes(done []outcome) report {
	all := slices.Clone(done)
	for _, old := range r.Outcomes {
		if !slices.ContainsFunc(done, func(o outcome) bool { return o.Target == old.Target }) {
			all = append(all, old)
		}
	}
	return report{all}
}

// table returns a row for each suite, also for a suite without a run.
func (r report) table() figures.Table {
	t := figures.Table{{"command", "tests", "last run", "commit", "result", "took", "machine"}}
	for _, s := range suites {
		row := []string{"`make " + s.target + "`", s.tests, "never", "", "", "", ""}
		for _, o := range r.Outcomes {
			if o.Target == s.target {
				row = append(row[:2], o.Date, o.Version, o.result(), fmt.Sprint(o.Took), o.Machine)
			}
		}
		t = append(t, row)
	}
	return t
}

// page returns the page and the file beside it from which the next run reads this run.
func (r report) page() (figures.Page, error) {
	data, err := figures.Encode(r)
	return figures.Page{
		Name:     pageName,
		Sections: []figures.Section{{Begin: beginMark, End: endMark, Text: r.table().Markdown() + "\n"}},
		Files:    map[string][]byte{fileName: data},
	}, err
}
