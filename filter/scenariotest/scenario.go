// Package scenariotest holds timelines of requests and of the answers that clients get, each
// written once and played twice: by the filter's code in Go, and by the built module in a modelled
// Envoy.
package scenariotest

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/weir-proxy/weir/shared/policy"
)

// Scenario is a timeline of one node and its control plane.
type Scenario struct {
	Name string
	// Policies is the first policy set: its policies, in JSON. Without any there is no set yet.
	Policies string
	// Workers is the number of the node's workers; 0 means 1.
	Workers int
	Steps   []Step
}

// Step is a set of events after a pause, in the order of the fields.
type Step struct {
	After time.Duration
	// Plane changes the control plane.
	Plane func(*Plane)
	// Push is a policy set, which is in force everywhere PushTakes later.
	Push string
	// End ends the streams of the requests with that name. Leave makes their clients go away. See
	// checks Want against each of them; their number must be Of.
	End, Leave, See string
	Of              int

	// Ask is a request, as names and values of headers: "x-cost=2 x-key=a". Without it a step with
	// a Want has one request without headers. The step lasts until the request is decided, unless
	// it has a name.
	Ask    string
	Worker int
	// Answer is the response to the requests of the step, or to the requests that End names: its
	// status and headers, as in "500 x-used=7". The default is 200.
	Answer string
	// As names the request. Then its stream lasts, and it may wait.
	As string
	// Times is the number of such requests, each with the outcome Want; 0 means 1.
	Times int
	// Pass is the number of such requests that are allowed before the requests with the outcome
	// Want.
	Pass int
	// Want is the outcome: "allowed", "refused", "unlimited" or "waits", then fields of it: the
	// fields of the decision in access logs, where retry and delayed are spans and retry=never
	// means that waiting does not help; asked=yes for a request that waited for the control plane;
	// calls of the step; status; any header of the answer, which contains the value, or is present
	// without it: ratelimit=!"p", or is equal to it: retry-after==1. A value may be a range:
	// retry=11s..13s. The outcome * is any.
	Want string
	// Counts are counters of the filter: "requests.waited=2 shadow.refused=1".
	Counts string
	// Then returns the problem with the control plane at the end of the step.
	Then func(*Plane) string
}

// PushTakes is how long a step with a push lasts.
const PushTakes = 100 * time.Millisecond

// Driver is a node under test, and its control plane, in virtual time.
type Driver interface {
	Plane() *Plane
	// Calls returns the number of lease requests that the control plane has received.
	Calls() int
	// Push sends a policy set; it is in force everywhere within PushTakes.
	Push(set string)
	Advance(time.Duration)
	// Counted returns a counter of the filter, at its last tick.
	Counted(name string) uint64
	Ask(worker int, headers ...string) Request
}

// Request is a request at a node.
type Request interface {
	// Outcome returns the outcome of the request. Until it is done, the request waits.
	Outcome() (o Outcome, done bool)
	// End makes the upstream answer it, and Leave makes its client go away.
	End(status string, headers ...string)
	Leave()
}

// Outcome is the result for the client and for the access log.
type Outcome struct {
	Log    string
	Status int
	Header func(name string) string
}

// SetOf is a policy set of some policies.
func SetOf(policies string) string { return `{"version":"weir/v1","policies":[` + policies + `]}` }

// Decode reads a policy set.
func Decode(t testing.TB, set string) *policy.Set {
	t.Helper()
	doc, err := policy.ParseJSON([]byte(set))
	if err != nil {
		t.Fatalf("%v in %s", err, set)
	}
	decoded, err := policy.Decode(doc)
	if err != nil {
		t.Fatalf("%v in %s", err, set)
	}
	return decoded
}

// play is a scenario under way.
type play struct {
	Driver
	t     *testing.T
	step  Step
	calls int
	named map[string][]Request
}

// Run plays scenarios, each at a driver of its own.
func Run(t *testing.T, scenarios []Scenario, start func(*testing.T, Scenario) Driver) {
	for _, s := range scenarios {
		t.Run(s.Name, func(t *testing.T) {
			p := begin(t, s, start)
			for i, step := range s.Steps {
				if problem := p.takeStep(step); problem != "" {
					t.Errorf("step %d, %q: %s; want %q", i, step.Ask, problem, step.Want)
				}
			}
		})
	}
}

// begin puts the first policy set of a scenario into force.
func begin(t *testing.T, s Scenario, start func(*testing.T, Scenario) Driver) *play {
	p := &play{Driver: start(t, s), t: t, named: map[string][]Request{}}
	if s.Policies != "" {
		p.push(SetOf(s.Policies))
	}
	return p
}

func (p *play) push(set string) {
	p.Push(set)
	p.Advance(PushTakes)
}

// takeStep does one step and returns its problem.
func (p *play) takeStep(s Step) string {
	if problem := p.checkStep(s); problem != "" {
		return problem
	}
	p.step = s
	p.Advance(s.After)
	if s.Plane != nil {
		s.Plane(p.Plane())
	}
	if s.Push != "" {
		p.push(SetOf(s.Push))
	}
	for _, r := range p.named[s.End] {
		p.end(r)
	}
	for _, r := range p.named[s.Leave] {
		r.Leave()
	}
	delete(p.named, s.End)
	delete(p.named, s.Leave)
	p.calls = p.Calls()
	problem := p.wantOutcome(s)
	if problem == "" {
		problem = p.checkCounts(s.Counts)
	}
	if problem == "" && s.Then != nil {
		problem = s.Then(p.Plane())
	}
	return problem
}

// checkStep returns a problem if a step would check nothing of the requests that it names.
func (p *play) checkStep(s Step) string {
	for _, name := range []string{s.End, s.Leave, s.See} {
		if name != "" && len(p.named[name]) == 0 {
			return "no request has the name " + name
		}
	}
	asks := s.Ask != "" || s.As != "" || s.Times > 0 || s.Pass > 0
	switch {
	case s.See != "" && asks:
		return "a step cannot see requests and ask"
	case (s.See != "") != (s.Of > 0):
		return "a step that sees requests says of how many"
	case asks && s.Want == "" && s.Pass == 0:
		return "a step that asks wants something"
	}
	return ""
}

// wantOutcome makes the requests of a step, and checks their outcome.
func (p *play) wantOutcome(s Step) string {
	if s.See != "" {
		return p.see()
	}
	for n := range s.Pass {
		if problem := p.ask("allowed"); problem != "" {
			return fmt.Sprintf("%d pass, then %s", n, problem)
		}
	}
	for n := range max(s.Times, min(len(s.Want), 1)) {
		if problem := p.ask(s.Want); problem != "" {
			return fmt.Sprintf("request %d: %s", n, problem)
		}
	}
	return ""
}

// checkCounts checks counters, after a tick has updated them.
func (p *play) checkCounts(counts string) string {
	for field := range strings.FieldsSeq(counts) {
		p.Advance(20 * time.Millisecond)
		name, value, _ := strings.Cut(field, "=")
		if n := strconv.FormatUint(p.Counted(name), 10); !fits(value, n) {
			return fmt.Sprintf("%s is %s, want %s", name, n, value)
		}
	}
	return ""
}

func (p *play) see() string {
	all := p.named[p.step.See]
	if len(all) != p.step.Of {
		return fmt.Sprintf("%d are %s", len(all), p.step.See)
	}
	for i, r := range all {
		o, done := r.Outcome()
		if problem := p.judge(p.step.Want, o, done, ""); problem != "" {
			return fmt.Sprintf("%s %d: %s", p.step.See, i, problem)
		}
	}
	return ""
}

// ask makes the step's request. A request that waits has a second.
func (p *play) ask(want string) string {
	p.t.Helper()
	r := p.Ask(p.step.Worker, split(p.step.Ask)...)
	o, done := r.Outcome()
	asked := "no"
	if !done {
		asked = "yes"
	}
	if p.step.As != "" {
		p.named[p.step.As] = append(p.named[p.step.As], r)
		if strings.HasPrefix(want, "waits") {
			return p.judge(want, o, done, asked)
		}
	}
	for left := time.Second; !done && left > 0; left -= time.Millisecond {
		p.Advance(time.Millisecond)
		o, done = r.Outcome()
	}
	problem := p.judge(want, o, done, asked)
	if p.step.As == "" {
		p.end(r)
	}
	return problem
}

func (p *play) end(r Request) {
	words := split("200")
	if p.step.Answer != "" {
		words = split(p.step.Answer)
	}
	r.End(words[0], words[1:]...)
}

// split has the words of a request or an answer: names and values.
func split(text string) []string {
	return strings.FieldsFunc(text, func(c rune) bool { return c == ' ' || c == '=' })
}

// judge says how an outcome differs from the one wanted.
func (p *play) judge(want string, o Outcome, done bool, asked string) string {
	got := map[string]string{"asked": asked, "calls": strconv.Itoa(p.Calls() - p.calls),
		"status": strconv.Itoa(o.Status)}
	outcome := o.read(got)
	if !done {
		outcome = "waits"
	}
	headers := map[string]string{}
	first, fields, _ := strings.Cut(want, " ")
	fit := outcome == first || first == "*" && done
	for field := range strings.FieldsSeq(fields) {
		name, value, _ := strings.Cut(field, "=")
		found, known := got[name]
		if !known && o.Header != nil {
			found = strings.ReplaceAll(o.Header(name), ", ", ",")
			headers[name] = found
			fit = fit && has(found, value)
			continue
		}
		fit = fit && fits(value, found)
	}
	if fit {
		return ""
	}
	return fmt.Sprint(outcome, " ", got, headers)
}

// has holds a header against the value that a step wants in it.
func has(header, value string) bool {
	if whole, ok := strings.CutPrefix(value, "="); ok {
		return header == whole
	}
	part, isNot := strings.CutPrefix(value, "!")
	return header != "" && part != "" && strings.Contains(header, part) != isNot
}

// read fills in the fields of a decision, and returns the outcome.
func (o Outcome) read(into map[string]string) string {
	outcome, fields, _ := strings.Cut(o.Log, " ")
	switch outcome {
	case "":
		return "unlimited"
	case "refused":
		into["retry"] = "never"
	}
	for field := range strings.FieldsSeq(fields) {
		name, value, _ := strings.Cut(field, "=")
		if span, ok := strings.CutSuffix(name, "_us"); ok {
			name, value = span, value+"us"
		}
		into[name] = value
	}
	return outcome
}

// fits compares numbers and spans as such, and the rest as text.
func fits(want, got string) bool {
	value, isNumber := number(got)
	if low, high, isRange := strings.Cut(want, ".."); isRange {
		from, hasLow := number(low)
		to, hasHigh := number(high)
		return isNumber && hasLow && hasHigh && from <= value && value <= to
	}
	wanted, ok := number(want)
	return want == got && want != "" || ok && isNumber && wanted == value
}

func number(text string) (int64, bool) {
	if n, err := strconv.ParseInt(text, 10, 64); err == nil {
		return n, true
	}
	d, err := time.ParseDuration(text)
	return int64(d), err == nil
}
