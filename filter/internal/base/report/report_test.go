package report_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/weir-proxy/weir/filter/internal/base/report"
	"github.com/weir-proxy/weir/filter/internal/base/ruleset"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/wire"
)

const sec = quota.Instant(quota.Second)

var names = [wire.SectionCount]string{"offences", "ladder", "decisions", "measures"}

// world is a worker with a part for each section, and a control plane that the test answers for.
type world struct {
	t     *testing.T
	now   quota.Instant
	r     *report.Reporter
	parts [wire.SectionCount]*part
	// calls are the sections of each report, underWay ends reports without an answer, and under are
	// all their sections. unsent: none can be sent.
	calls    []string
	underWay []func(status int)
	under    wire.Sections
	unsent   bool
}

// part has something to say from an instant on.
type part struct {
	section wire.Section
	from    quota.Instant
	empty   bool // It has nothing to say after all.
	ends    []string
}

func (p *part) NextReport(quota.Instant) quota.Instant { return p.from }

func (p *part) AddTo(m *wire.Report, _ quota.Instant, _ *ruleset.Rules) {
	switch {
	case p.empty:
		return
	case p.section == wire.SectionOffences:
		m.Offences = &wire.Offences{Items: []wire.Offence{{Policy: []byte("p"), Level: 1, Until: 1, Forgotten: 1}}}
	case p.section == wire.SectionLadder:
		m.Ladder = &wire.Ladder{}
	case p.section == wire.SectionDecisions:
		m.Decisions = &wire.Decisions{}
	case p.section == wire.SectionMeasures:
		m.Measures = &wire.Measures{}
	}
	p.from = quota.Forever
}

func (p *part) EndReport(end report.End, _ quota.Instant) {
	p.ends = append(p.ends, [...]string{"taken", "lost", "refused"}[end])
}

func start(t *testing.T) *world {
	w := &world{t: t, now: 100 * sec}
	var parts report.Parts
	for i := range w.parts {
		w.parts[i] = &part{section: wire.Section(i), from: quota.Forever}
		parts[i] = w.parts[i]
	}
	w.r = report.New(w, w, "node", 7, 5, parts)
	return w
}

func (w *world) Now() quota.Instant { return w.now }

func (w *world) Call(path string, body []byte, _ quota.Span, done func(int, []byte)) error {
	if w.unsent {
		return errors.New("no healthy host")
	}
	m, err := wire.DecodeReport(body)
	if err != nil || path != "/node/v1/report" || string(m.Node) != "node" || m.Boot != 7 {
		w.t.Errorf("%s %+v: %v", path, m, err)
	}
	var sections []string
	for i, name := range names {
		if m.Sections().Has(wire.Section(i)) {
			sections = append(sections, name)
		}
	}
	sent := m.Sections()
	if w.under != 0 && (sent != 1<<offences || w.under.Has(offences)) {
		w.t.Errorf("%v leave beside %b", sections, w.under)
	}
	w.calls, w.under = append(w.calls, strings.Join(sections, "+")), w.under|sent
	w.underWay = append(w.underWay, func(status int) {
		w.under &^= sent
		done(status, nil)
	})
	return nil
}

// say has parts say something from now on.
func (w *world) say(sections ...wire.Section) {
	for _, s := range sections {
		w.parts[s].from = w.now
	}
}

// answer ends the report that is under way longest.
func (w *world) answer(status int) {
	w.t.Helper()
	if len(w.underWay) == 0 {
		w.t.Fatal("no report is under way")
	}
	done := w.underWay[0]
	w.underWay = w.underWay[1:]
	done(status)
}

// pass lets time pass in ticks of 10 ms, and answers each report with a status; 0 does not answer.
func (w *world) pass(span quota.Instant, status int) {
	w.t.Helper()
	for end := w.now + span; w.now < end; {
		w.now += sec / 100
		due, before := w.r.NextDue(w.now), len(w.calls)
		if w.r.Tick(w.now, nil); !w.unsent && len(w.calls) > before != (due <= w.now) {
			w.t.Errorf("%d reports at %d, due at %d", len(w.calls)-before, w.now, due)
		}
		for len(w.underWay) > 0 && status != 0 {
			w.answer(status)
		}
	}
}

// want checks which reports left, and the ends of a section's reports.
func (w *world) want(calls ...string) {
	w.t.Helper()
	if got, want := fmt.Sprint(w.calls), fmt.Sprint(calls); got != want {
		w.t.Errorf("reported %s, want %s", got, want)
	}
	w.calls = nil
}

func (w *world) ended(s wire.Section, want ...string) {
	w.t.Helper()
	if got := w.parts[s].ends; fmt.Sprint(got) != fmt.Sprint(want) {
		w.t.Errorf("%s ended %v, want %v", names[s], got, want)
	}
	w.parts[s].ends = nil
}

const (
	offences  = wire.SectionOffences
	ladder    = wire.SectionLadder
	decisions = wire.SectionDecisions
	measures  = wire.SectionMeasures
)

// Parts that have something to say at once share a report. Then each keeps its own pace, and
// offences wait for nothing but an answer.
func TestSectionsShareAReport(t *testing.T) {
	w := start(t)
	w.pass(sec, 204)
	w.want()
	w.say(offences, ladder, decisions, measures)
	w.pass(sec/100, 0)
	w.want("offences+ladder+decisions+measures")
	w.say(offences, measures)
	w.pass(sec/2, 0)
	w.want()
	w.answer(204)
	w.pass(sec/100, 204)
	w.want("offences")
	w.say(offences, ladder, decisions)
	w.pass(sec/2, 204)
	w.want("offences")
	w.pass(sec/2, 204)
	w.want("ladder+decisions")
	w.pass(5*sec, 204)
	w.want("measures")
	for i := range w.parts {
		for _, end := range w.parts[i].ends {
			if end != "taken" {
				t.Errorf("%s: %s", names[i], end)
			}
		}
	}
}

// A section that is due soon leaves with other sections. A part without news has no section.
func TestSectionsLeaveTogether(t *testing.T) {
	w := start(t)
	w.say(decisions, measures)
	w.pass(4*sec+9*sec/10, 204)
	w.want("decisions+measures")
	w.say(decisions, measures)
	w.pass(sec/100, 204)
	w.want("decisions+measures")
	w.pass(10*sec, 204)
	w.parts[ladder].empty = true
	w.say(ladder, decisions)
	w.r.Tick(w.now, nil)
	w.answer(204)
	w.want("decisions")
	w.parts[decisions].ends = nil
	w.say(ladder)
	w.now += 10 * sec
	w.r.Tick(w.now, nil)
	w.want()
	w.ended(ladder)
}

// Sections that were not taken are lost alone, and wait longer each time.
func TestSectionsThatAreNotTaken(t *testing.T) {
	w := start(t)
	least := quota.Instant(0)
	for range 5 {
		w.say(offences, decisions)
		w.r.Tick(w.now, nil)
		w.answer(202)
		w.ended(offences, "lost")
		w.ended(decisions, "taken")
		w.say(offences)
		due := w.r.NextDue(w.now)
		if due <= w.now+least || due > w.now+10*sec {
			t.Errorf("due in %d", due-w.now)
		}
		least = (due - w.now) / 2
		w.now = due + 2*sec
	}
	for _, status := range []int{0, 429, 503, 404, 405} {
		for _, one := range []wire.Section{ladder, measures} {
			w.now += 100 * sec
			w.say(one)
			w.r.Tick(w.now, nil)
			w.answer(status)
			w.ended(one, "lost")
			w.say(one)
			due := w.r.NextDue(w.now)
			unknown := one != ladder && (status == 404 || status == 405)
			if late := due >= w.now+60*sec; due <= w.now || late != unknown || one == ladder && due > w.now+sec {
				t.Errorf("%s after %d: due in %d", names[one], status, due-w.now)
			}
			w.parts[one].from = quota.Forever
		}
	}
	w.say(ladder, measures)
	w.now, w.unsent = w.now+100*sec, true
	w.r.Tick(w.now, nil)
	w.ended(ladder, "lost")
	w.ended(measures, "lost")
}

// Offences leave beside a report without an answer that has none, and nothing else does.
func TestOffencesOvertakeAReport(t *testing.T) {
	w := start(t)
	w.say(ladder, decisions)
	w.pass(sec/100, 0)
	w.want("ladder+decisions")
	w.say(offences, measures)
	w.pass(sec/100, 0)
	w.want("offences")
	w.say(offences)
	w.pass(sec/2, 0)
	w.want()
	w.answer(503)
	w.ended(ladder, "lost")
	w.ended(decisions, "lost")
	w.ended(offences)
	w.answer(204)
	w.ended(offences, "taken")
	w.pass(sec/100, 204)
	w.want("offences+measures")
}

// A section that the control plane cannot read spoils other sections once: then each section leaves
// separately until it is taken, and a bad section for ever.
func TestABadSectionIsFound(t *testing.T) {
	all := []wire.Section{offences, ladder, decisions, measures}
	for _, status := range []int{400, 413} {
		for _, bad := range all {
			w := start(t)
			w.say(all...)
			w.pass(sec/100, status)
			w.want("offences+ladder+decisions+measures")
			for _, one := range all {
				w.ended(one, "lost")
			}
			for range 3 {
				w.now += 60 * sec
				w.say(all...)
				w.pass(sec/10, 0)
				for len(w.underWay) > 0 {
					answer := 204
					if w.under.Has(bad) {
						answer = status
					}
					w.answer(answer)
					w.pass(sec/10, 0)
				}
				for _, one := range all {
					if one == bad {
						w.ended(one, "refused")
					} else {
						w.ended(one, "taken")
					}
				}
			}
			var others []string
			for i, name := range names {
				if wire.Section(i) != bad {
					others = append(others, name)
				}
			}
			later := []string{strings.Join(others, "+"), names[bad]}
			if bad == offences {
				later = []string{names[bad], later[0]}
			}
			w.want(append(append(slices.Clone(names[:]), later...), later...)...)
		}
	}
}
