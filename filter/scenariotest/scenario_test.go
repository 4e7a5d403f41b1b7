package scenariotest

import (
	"slices"
	"strings"
	"testing"

	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/wire"
)

// The table has a minimum number of scenarios, each with a name of its own.
func TestThereAreScenarios(t *testing.T) {
	names := map[string]bool{}
	for _, s := range All() {
		if names[s.Name] || len(s.Steps) == 0 {
			t.Errorf("%q is there twice, or has no steps", s.Name)
		}
		names[s.Name] = true
	}
	if len(names) < 119 {
		t.Errorf("there are only %d scenarios", len(names))
	}
}

// A step that checks nothing, or whose check fails, is wrong.
func TestStepsCheckTheirWants(t *testing.T) {
	for _, c := range []struct {
		step Step
		want string
	}{
		{Step{See: "b", Want: "allowed"}, "no request has the name b"},
		{Step{See: "b", Of: 1, Want: "allowed"}, "no request has the name b"},
		{Step{See: "a", Want: "allowed"}, "says of how many"},
		{Step{See: "a", Of: 1, Want: "allowed"}, "2 are a"},
		{Step{See: "a", Of: 2, Want: "refused"}, "a 0: allowed"},
		{Step{See: "a", Of: 2, Ask: "x-k=1", Want: "allowed"}, "see requests and ask"},
		{Step{Of: 2, Want: "allowed"}, "says of how many"},
		{Step{End: "b"}, "no request has the name b"},
		{Step{Leave: "b"}, "no request has the name b"},
		{Step{Ask: "x-k=1"}, "wants something"},
		{Step{As: "c"}, "wants something"},
		{Step{Pass: 6, Want: "allowed"}, "3 pass, then refused"},
		{Step{Want: "allowed remaining=4"}, `allowed map[`},
		{Step{Want: "allowed remaining=4..none"}, `allowed map[`},
		{Step{Want: "allowed remaining=none..4"}, `allowed map[`},
		{Step{Want: "allowed remaining"}, `allowed map[`},
		{Step{Want: "allowed mode="}, `allowed map[`},
		{Step{Want: `allowed ratelimit=="p";r=2`}, `ratelimit:"p";r=2`},
		{Step{Want: `allowed ratelimit=`}, `ratelimit:"p";r=2`},
		{Step{Want: `allowed ratelimit=!`}, `ratelimit:"p";r=2`},
		{Step{Want: `allowed ratelimit=!r=2`}, `ratelimit:"p";r=2`},
		{Step{Want: `allowed x-none=!,`}, `x-none:`},
		{Step{Want: "allowed", Counts: "requests.allowed=2"}, "requests.allowed is 3"},
	} {
		p := begin(t, Scenario{Policies: one("local", `"limit":{"quota":5,"window":"1h"}`)}, StartProcess)
		if problem := p.takeStep(Step{As: "a", Times: 2, Want: `allowed ratelimit=!, ratelimit="p";r=`}); problem != "" {
			t.Error(problem)
		}
		if problem := p.takeStep(c.step); !strings.Contains(problem, c.want) || problem == "" {
			t.Errorf("%+v: %q, want %q", c.step, problem, c.want)
		}
	}
}

// A call ends once: with its answer, or at its timeout.
func TestACallEndsOnce(t *testing.T) {
	for status, want := range map[int][]int{-1: {0}, 0: {200}, 503: {503}} {
		p := StartProcess(t, Scenario{}).(*process)
		p.plane.Status = status
		var ends []int
		if err := p.call(wire.AppendLeaseRequest(nil, wire.LeaseRequest{}), 20*quota.Millisecond,
			func(status int, _ []byte) { ends = append(ends, status) }); err != nil {
			t.Fatal(err)
		}
		p.Advance(30 * ms)
		if !slices.Equal(ends, want) {
			t.Errorf("a call that is answered %d ends with %d, want %d", status, ends, want)
		}
	}
}
