package measures_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/weir-proxy/weir/filter/internal/answer/measures"
	"github.com/weir-proxy/weir/filter/internal/base/report"
	"github.com/weir-proxy/weir/filter/internal/base/ruleset"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/wire"
)

const (
	ms  = quota.Instant(quota.Millisecond)
	sec = quota.Instant(quota.Second)
)

// world is one VM with a control plane that answers when the test says so.
type world struct {
	t      *testing.T
	now    quota.Instant
	s      *measures.Recorder
	r      *report.Reporter
	flown  []flown
	sent   []string
	done   func(status int, body []byte)
	unsent error
}

func newWorld(t *testing.T) *world {
	w := &world{t: t, now: 100 * sec}
	w.s = measures.New(w)
	w.r = report.New(w, w, "node", 1, 7, report.Parts{wire.SectionMeasures: w.s})
	return w
}

// flown is the use of a policy that Measure reports.
type flown struct {
	policy string
	busy   quota.Span
	since  quota.Instant
	used   int64
}

// fly adds a use of a policy.
func (w *world) fly(policy string, busy quota.Span, since quota.Instant, used int64) {
	w.flown = append(w.flown, flown{policy, busy, since, used})
}

// Unmeasured implements measures.Flights.
func (w *world) Unmeasured() bool { return len(w.flown) > 0 }

// Measure implements measures.Flights.
func (w *world) Measure(_ quota.Instant, each func(string, quota.Span, quota.Instant, int64)) {
	for _, f := range w.flown {
		each(f.policy, f.busy, f.since, f.used)
	}
	w.flown = nil
}

func (w *world) Now() quota.Instant { return w.now }

func (w *world) Call(path string, body []byte, _ quota.Span, done func(status int, body []byte)) error {
	if w.unsent != nil {
		return w.unsent
	}
	r, err := wire.DecodeReport(append([]byte(nil), body...))
	if err != nil || string(r.Node) != "node" || r.Sections() != 1<<wire.SectionMeasures ||
		path != "/node/v1/report" {
		w.t.Fatalf("%s %x: %v", path, body, err)
	}
	m := r.Measures
	text := fmt.Sprint(int64(m.Covers / quota.Millisecond))
	for _, one := range m.Items {
		text += fmt.Sprintf(" %s:%d/%d/%d/%d", one.Policy, one.CandidateRefused, one.ShadowRefused, one.Busy, one.Used)
		if one.CandidateUndetermined+one.ShadowUndetermined > 0 {
			text += fmt.Sprintf(" %d/%d not known", one.CandidateUndetermined, one.ShadowUndetermined)
		}
		if one.Decided > 0 {
			text += fmt.Sprintf(" v%d %d of %d refused, %d unsure, %d waited %d ms", one.Version, one.Refused,
				one.Decided, one.Unsure, one.Waited, one.Held)
		}
	}
	w.sent, w.done = append(w.sent, text), done
	return nil
}

// pass lets time pass, in ticks of 100 ms; a message is answered with a status, or later if it is
// 0.
func (w *world) pass(span quota.Instant, status int) {
	w.t.Helper()
	for end := w.now + span; w.now < end; {
		w.now += 100 * ms
		due, sent := w.r.NextDue(w.now), len(w.sent)
		w.r.Tick(w.now, nil)
		if w.unsent == nil && (len(w.sent) > sent) != (due <= w.now) {
			w.t.Errorf("%d messages at %d, which were due at %d", len(w.sent)-sent, w.now, due)
		}
		if w.done != nil && status != 0 {
			w.done(status, nil)
			w.done = nil
		}
	}
}

func (w *world) want(sent ...string) {
	w.t.Helper()
	if got, want := fmt.Sprintf("%q", w.sent), fmt.Sprintf("%q", sent); got != want {
		w.t.Errorf("sent %s, want %s", got, want)
	}
	w.sent = nil
}

// The first message leaves at once, later measurements five seconds later, and no message leaves
// without measurements.
func TestMeasuresAreAddedUp(t *testing.T) {
	w := newWorld(t)
	w.pass(10*sec, 204)
	w.s.Decided([]byte("none"), 7, counts(0, 0), 0)
	w.pass(10*sec, 204)
	w.want()
	w.s.Decided([]byte("api"), 7, counts(3, 0), 0)
	w.pass(100*ms, 204)
	w.want("0 api:3/0/0/0")
	w.s.Decided([]byte("api"), 7, counts(1, 2), 0)
	w.s.Decided([]byte("api"), 7, counts(4, 0), 70)
	w.s.Decided([]byte("quiet"), 7, counts(0, 0), 3)
	w.s.Decided([]byte("quiet"), 7, counts(0, 0), 2)
	w.fly("places", 2500*quota.Millisecond, w.now-sec, 40)
	w.fly("api", quota.Second, w.now-2*sec, 1<<40)
	w.fly("places", quota.Second, w.now, 20)
	w.pass(4900*ms, 204)
	w.want()
	w.pass(200*ms, 204)
	w.want("7000 api:5/2/1000/1000 quiet:0/0/0/3 places:0/0/3500/40")
	w.pass(60*sec, 204)
	w.want()
}

// A message that does not arrive is lost, and a control plane that does not know it is asked once a
// minute.
func TestMeasuresThatDoNotArrive(t *testing.T) {
	w := newWorld(t)
	for _, c := range []struct {
		status int
		least  quota.Instant
	}{{404, 60 * sec}, {503, 2 * sec}, {503, 4 * sec}} {
		w.s.Decided([]byte("a"), 7, counts(1, 0), 0)
		w.pass(100*ms, c.status)
		w.want("0 a:1/0/0/0")
		w.s.Decided([]byte("a"), 7, counts(1, 0), 0)
		if due := w.r.NextDue(w.now); due < w.now+c.least {
			t.Errorf("after %d the next one is due in %d", c.status, due-w.now)
		}
		w.now += 80 * sec
		w.pass(100*ms, 204)
		w.want("0 a:1/0/0/0")
		w.now += 80 * sec
	}
	w.unsent = errors.New("no cluster")
	w.s.Decided([]byte("a"), 7, counts(1, 0), 0)
	w.pass(100*ms, 204)
	w.unsent = nil
	w.pass(20*sec, 204)
	w.want()
	// None leaves while one is under way.
	w.s.Decided([]byte("a"), 7, counts(1, 0), 0)
	w.pass(sec, 0)
	w.s.Decided([]byte("a"), 7, counts(1, 0), 0)
	if w.r.NextDue(w.now+100*sec) != quota.Forever {
		t.Error("due while a message is under way")
	}
}

// Policies for which a message has no room are left out.
func TestMeasuresAreBounded(t *testing.T) {
	w := newWorld(t)
	for n := range 2 * wire.MaxMeasures {
		w.s.Decided(fmt.Append(nil, "policy-", n), 7, counts(1, 0), 0)
	}
	w.pass(100*ms, 204)
	if len(w.sent) != 1 {
		t.Errorf("%d messages", len(w.sent))
	}
}

// All requests are reported also where more policies than a message has were met before them, of
// both versions while a worker changes from one to the other; and each version has one measure.
func TestAllRequestsHaveAPlace(t *testing.T) {
	w := newWorld(t)
	for range 3 {
		for version := range uint64(2) {
			for n := range wire.MaxMeasures {
				w.s.Decided(fmt.Append(nil, "policy-", n), 7+version, counts(1, 0), 0)
			}
			w.s.Decided([]byte(wire.AllRequests), 7+version, &ruleset.Counts{ruleset.CountAllowed: 5}, 0)
		}
	}
	w.pass(100*ms, 204)
	for version := range 2 {
		want := fmt.Sprintf(" *:0/0/0/0 v%d 0 of 15 refused", 7+version)
		if len(w.sent) != 1 || strings.Count(w.sent[0], want) != 1 || strings.Count(w.sent[0], " policy-9:") > 2 {
			t.Errorf("not %s in %s", want, w.sent)
		}
	}
}

// counts returns the counts of requests that a candidate, and a policy in shadow, would have
// refused.
func counts(candidate, shadow uint32) *ruleset.Counts {
	return &ruleset.Counts{ruleset.CountCandidateRefused: candidate, ruleset.CountShadowRefused: shadow}
}

// Undetermined requests are reported even if no request would have been refused.
func TestUndeterminedRequestsAreReported(t *testing.T) {
	w := newWorld(t)
	w.s.Decided([]byte("api"), 7, &ruleset.Counts{
		ruleset.CountCandidateUndetermined: 2, ruleset.CountShadowUndetermined: 5,
	}, 0)
	w.pass(100*ms, 200)
	w.want("0 api:0/0/0/0 2/5 not known")
}

// Decisions are reported separately for each version of the policy set, and added up if one message
// has several counts of a version.
func TestDecisionsAreReportedByVersion(t *testing.T) {
	w := newWorld(t)
	one := &ruleset.Counts{ruleset.CountAllowed: 5, ruleset.CountRefused: 2, ruleset.CountUnsure: 1,
		ruleset.CountWaited: 3, ruleset.CountHeld: 40}
	w.s.Decided([]byte("api"), 7, one, 0)
	w.s.Decided([]byte("api"), 7, one, 0)
	w.s.Decided([]byte("api"), 8, one, 0)
	w.fly("api", quota.Second, w.now-sec, 90)
	w.pass(100*ms, 204)
	w.want("1100 api:0/0/0/0 v7 4 of 14 refused, 2 unsure, 6 waited 80 ms" +
		" api:0/0/1000/90 v8 2 of 7 refused, 1 unsure, 3 waited 40 ms")
}
