package rls_test

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/weir-proxy/weir/controlplane/internal/fleet/penalties"
	"github.com/weir-proxy/weir/controlplane/internal/ground/audit"
	"github.com/weir-proxy/weir/controlplane/internal/rules/policies"
	"github.com/weir-proxy/weir/controlplane/internal/serve/rls"
	"github.com/weir-proxy/weir/controlplane/internal/store/localstore"
)

// noSets knows the policy set in force and no version.
type noSets struct{ w *world }

func (s noSets) Active() (policies.Active, <-chan struct{}) {
	return policies.Active{Current: s.w.plane.Current(0)}, nil
}

func (noSets) Load(context.Context, uint64) (v policies.Version, away, err error) {
	return v, nil, policies.ErrNotFound
}

func (noSets) At(context.Context, uint64) (*policies.Compiled, error) {
	return nil, policies.ErrNotFound
}

type noMeter struct{}

func (noMeter) PenaltyBegun(string, bool) {}
func (noMeter) PenaltiesFull(int)         {}

// withPenalties gives a world a store of penalties.
func (w *world) withPenalties() *penalties.Service {
	w.t.Helper()
	now := func() time.Time { return w.now }
	store, err := localstore.Open(w.t.TempDir(), slog.New(slog.DiscardHandler),
		localstore.Options{SaveByHand: true, Now: now})
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = store.Close() })
	service := penalties.New(penalties.Config{
		Store: store, Sets: noSets{w}, Now: now, Meter: noMeter{}, Log: slog.New(slog.DiscardHandler),
	})
	w.penalties = penalties.NewEnforcer(service, rls.NodeName, func() uint64 { return 0 })
	w.restart()
	return service
}

// punished returns a policy for a user's calls to /a with one token in ten seconds, and a policy
// for its calls to /b with many.
func punished(penalty, more string) string {
	return `
version: weir/v1
headers: {standard: "off"}
identity: {consumer: [{header: x-api-key}]}
policies:
  - {name: a, match: {domain: a}, partition: [consumer], limit: {quota: 1, window: 10s}, mode: strict` + more + `,
     penalty: {after: {refusals: 3, within: 10s}, jitter: 0%` + penalty + `}}
  - {name: b, match: {domain: b, descriptors: [{name: user, present: true}]}, partition: [consumer, "descriptor:user"], limit: {quota: 1000, window: 1h}, mode: strict}
`
}

// call is one call, in words: allowed, or why it was refused, by which policy and for how long.
func (w *world) call(caller, domain string) string {
	w.t.Helper()
	out := w.ask(request(domain, "header:x-api-key="+caller+"|user=u"))
	fields := out.DynamicMetadata.GetFields()
	if out.OverallCode.String() == "OK" {
		return "allowed"
	}
	text := fields["reason"].GetStringValue()
	if text == "penalty" {
		retry := int64(fields["retry_us"].GetNumberValue()) / 1_000_000
		text += fmt.Sprintf(" %d by %s", retry, fields["policy"].GetStringValue())
	}
	return text
}

func TestPenalties(t *testing.T) {
	type step struct {
		at   int // in seconds
		who  string
		want string
	}
	four := []step{{0, "eve a", "allowed"}, {0, "eve a", "quota"}, {1, "eve a", "quota"}, {2, "eve a", "quota"}}
	for name, c := range map[string]struct {
		document string
		line     []step
	}{
		"each offence doubles the time, and hits its caller alone": {punished("", ""), append(four, []step{
			{2, "eve a", "penalty 60 by a"}, {2, "bob a", "allowed"}, {31, "eve a", "penalty 31 by a"},
			{31, "eve b", "allowed"},
			{61, "eve a", "penalty 1 by a"}, {62, "eve a", "allowed"}, {62, "eve a", "quota"}, {62, "eve a", "quota"},
			{63, "eve a", "quota"}, {63, "eve a", "penalty 120 by a"},
		}...)},
		"with extend it starts over": {punished(", extend: true", ""), append(four, []step{
			{30, "eve a", "penalty 60 by a"}, {89, "eve a", "penalty 60 by a"}, {149, "eve a", "allowed"},
		}...)},
		"for all policies": {punished(", scope: all", ""), append(four, []step{
			{3, "eve b", "penalty 59 by a"}, {3, "eve a", "penalty 59 by a"}, {3, "bob b", "allowed"},
			{3, "eve c", "allowed"},
			{62, "eve b", "allowed"},
		}...)},
		"a penalty in shadow refuses nothing": {punished(", shadow: true", ""), append(four, []step{
			{3, "eve a", "quota"}, {62, "eve a", "allowed"}, {62, "eve a", "quota"},
		}...)},
		"nor does that of a policy in shadow": {punished("", ", enforcement: shadow"), []step{
			{0, "eve a", "allowed"}, {0, "eve a", "allowed"}, {0, "eve a", "allowed"}, {0, "eve a", "allowed"},
			{0, "eve a", "allowed"},
		}},
		"what the store does not decide is no offence": {punished("", ", on_failure: [deny]"), []step{
			{0, "eve a", "allowed"}, {1, "down", ""}, {1, "eve a", "failure"}, {1, "eve a", "failure"},
			{1, "eve a", "failure"},
			{1, "eve a", "failure"}, {2, "up", ""}, {2, "eve a", "quota"},
		}},
	} {
		t.Run(name, func(t *testing.T) {
			w := begin(t, c.document)
			w.withPenalties()
			for i, s := range c.line {
				w.now = start.Add(time.Duration(s.at) * time.Second)
				caller, domain, call := strings.Cut(s.who, " ")
				if !call {
					w.store.Down = caller == "down"
					continue
				}
				if got := w.call(caller, domain); got != s.want {
					t.Fatalf("step %d at %d, %s: %s, want %s", i, s.at, s.who, got, s.want)
				}
			}
		})
	}
}

// A penalty is named, and its answer ends with it to the second.
func TestWordsOfPenalties(t *testing.T) {
	w := begin(t, punished("", ""))
	w.withPenalties()
	for range 4 {
		w.call("eve", "a")
	}
	w.now = w.now.Add(500 * time.Millisecond)
	out := w.ask(request("a", "header:x-api-key=eve|user=u"))
	if got := headersOf(out); got != "retry-after: 60\ncache-control: no-store\n"+
		"content-type: application/problem+json" {
		t.Error(got)
	}
	want := `{"type":"https://iana.org/assignments/http-problem-types#abnormal-usage-detected","title":"Abnormal Usage Detected",` +
		`"detail":"Policy a has refused this caller too often, so all its requests are refused until the penalty ends. Try again in 60 seconds.",` +
		`"violated-policies":["a"],"limit":1,"window":"10s","retry_after":60}` + "\n"
	if string(out.RawBody) != want {
		t.Errorf("%s, want %s", out.RawBody, want)
	}
	if source := out.DynamicMetadata.Fields["source"].GetStringValue(); source != "penalty" {
		t.Error(source)
	}
}

// A refusal by a penalty shows the levels of the call's buckets. It names a wait after which all of
// them let the call through, like the filter's refusal. It only looks: no bucket is charged.
func TestAPenaltySaysWhatTheBucketsHold(t *testing.T) {
	const one, none, two = "ratelimit: \"a\";r=1;t=49", "ratelimit: \"a\";r=0;t=60", "ratelimit: \"b\";r="
	set := strings.Replace(punished(", scope: all", ""), `{standard: "off"}`, "{legacy: x-ratelimit}", 1)
	long := strings.Replace(set, "quota: 1, window: 10s", "quota: 1, window: 1h", 1)
	for name, c := range map[string]struct {
		document, domain string
		after            time.Duration
		used, hits       uint64 // of b, before the penalty and under it
		down             bool
		want, not        string
	}{
		"its own bucket is empty": {
			set, "a", 0, 0, 1, false, "retry-after: 60\n|remaining: 0|" + none, "",
		},
		"it is full again": {
			set, "a", 11 * time.Second, 0, 1, false, "retry-after: 49\n|remaining: 1|" + one, "",
		},
		"it is empty for longer": {
			long, "a", 0, 0, 1, false, "retry-after: 3601\n|ratelimit: \"a\";r=0;t=3601\n", "",
		},
		"another policy's bucket is full": {
			set, "b", 0, 0, 1, false, "retry-after: 60\n|" + two + "1000\n", "x-ratelimit-|\"a\"",
		},
		"another's lacks what the call costs": {
			set, "b", 0, 1000, 1000, false, "retry-after: 3601\n|" + two + "0;t=3601\n", "",
		},
		"a call that takes nothing waits for no bucket": {
			set, "b", 0, 1000, 0, false, "retry-after: 60\n|" + two + "0\n", "",
		},
		"another's never lets it through": {
			set, "b", 0, 0, 2000, false, two + "1000;t=0\n", "retry-after",
		},
		"the store does not answer": {
			set, "a", 0, 0, 1, true, "retry-after: 60\n", "ratelimit",
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := begin(t, c.document)
			w.withPenalties()
			ask := func(domain string, hits uint64) string {
				in := request(domain, "header:x-api-key=eve|user=u")
				in.Descriptors[1].HitsAddend = wrapperspb.UInt64(hits)
				return headersOf(w.ask(in)) + "\n"
			}
			ask("b", c.used)
			for range 4 {
				w.call("eve", "a")
			}
			w.now, w.store.Down = w.now.Add(c.after), c.down
			for range 2 {
				said := ask(c.domain, c.hits)
				for _, part := range strings.Split(c.want, "|") {
					if !strings.Contains(said, part) {
						t.Errorf("no %q in\n%s", part, said)
					}
				}
				for _, part := range strings.Split(c.not, "|") {
					if part != "" && strings.Contains(said, part) {
						t.Errorf("%q in\n%s", part, said)
					}
				}
			}
		})
	}
}

// A caller under a penalty looks at the store once a second, also while that does not answer.
func TestPenaltiesLookAgainAtAStoreThatWasAway(t *testing.T) {
	w := begin(t, punished("", ""))
	w.withPenalties()
	for range 4 {
		w.call("eve", "a")
	}
	looks := func(down bool, calls int, want int64) {
		t.Helper()
		w.store.Down = down
		before := w.grants.Load()
		for range calls {
			if got := w.call("eve", "a"); !strings.HasPrefix(got, "penalty") {
				t.Error(got)
			}
		}
		if got := w.grants.Load() - before; got != want {
			t.Errorf("%d of %d calls asked the store at %s, want %d", got, calls, w.now.Sub(start), want)
		}
	}
	looks(false, 3, 1)
	looks(true, 10, 0)
	w.now = w.now.Add(1100 * time.Millisecond)
	looks(true, 10, 1)
	looks(false, 3, 0)
	w.now = w.now.Add(1100 * time.Millisecond)
	looks(false, 3, 1)
}

// The refusal that begins a penalty names its end too. A penalty in shadow does not lengthen the
// wait.
func TestTheRefusalThatBeginsAPenaltyNamesItsEnd(t *testing.T) {
	for penalty, want := range map[string]float64{"": 60e6, ", shadow: true": 10e6} {
		w := begin(t, punished(penalty, ""))
		w.withPenalties()
		for i := range 4 {
			least := float64(0)
			if i == 3 {
				least = want
			}
			out := w.ask(request("a", "header:x-api-key=eve|user=u"))
			fields := out.DynamicMetadata.GetFields()
			reset := out.Statuses[0].DurationUntilReset.AsDuration()
			if i > 0 && float64(reset.Microseconds()) < least {
				t.Errorf("%q, call %d: a reset after %s", penalty, i, reset)
			}
			if retry := fields["retry_us"].GetNumberValue(); retry < least || retry > max(least, 10e6)+1e6 {
				t.Errorf("%q, call %d: a wait of %v µs", penalty, i, retry)
			}
		}
	}
}

// Operators see whom a penalty hits, also in shadow, and a pardon ends it at once.
func TestPenaltiesAreListedAndPardoned(t *testing.T) {
	for name, c := range map[string]struct {
		document string
		shadow   bool
	}{
		"enforced":                  {punished("", ""), false},
		"in shadow":                 {punished(", shadow: true", ""), true},
		"of a policy in shadow":     {punished("", ", enforcement: shadow"), true},
		"in shadow, for all others": {punished(", scope: all, shadow: true", ""), true},
	} {
		t.Run(name, func(t *testing.T) {
			w := begin(t, c.document)
			service := w.withPenalties()
			for range 6 {
				w.call("eve", "a")
				w.service.Wait()
			}
			if err := w.penalties.Deliver(t.Context()); err != nil {
				t.Fatal(err)
			}
			if err := service.Refresh(t.Context()); err != nil {
				t.Fatal(err)
			}
			list, all := service.List(penalties.Query{}, 10)
			if all != 1 || list[0].Policy != "a" || list[0].Node != rls.NodeName || list[0].Shadow != c.shadow ||
				list[0].Consumer == "" {
				t.Fatalf("%d: %+v", all, list)
			}
			if _, err := service.Pardon(t.Context(), penalties.Query{Policy: "a"},
				audit.Entry{Action: "a"}); err != nil {
				t.Fatal(err)
			}
			if got := w.call("eve", "a"); strings.HasPrefix(got, "penalty") {
				t.Error(got)
			}
		})
	}
}
