package series_test

import (
	"fmt"
	"testing"
	"time"
)

// A policy that any count names has been met; the others have not, once that would be known.
func TestUnmetPolicies(t *testing.T) {
	w := newWorld(t)
	s := w.replica("a")
	expect := func(when string, since time.Time, want string) {
		t.Helper()
		unmet, from := s.Unmet([]string{"met", "refused", "never"}, since)
		if got := fmt.Sprint(unmet, " ", from.UTC().Format("15:04")); got != want {
			t.Errorf("%s: %s, want %s", when, got, want)
		}
	}
	begun := w.now
	w.pass(5 * time.Second)
	s.Granted("met", 1, 0)
	s.Tried("refused", "node", false, false)
	w.pass(5 * time.Minute)
	expect("too early to know", time.Time{}, "map[] 12:00")
	w.pass(15 * time.Minute)
	expect("with a history of twenty minutes", time.Time{}, "map[never:true] 12:00")
	const all = "map[met:true never:true refused:true]"
	expect("with a version of a quarter of an hour", begun.Add(5*time.Minute), all+" 12:06")
	expect("with a version that is new", w.now, "map[] 12:21")
	s.Granted("never", 5, 0)
	w.pass(5 * time.Second)
	expect("once it was met", time.Time{}, "map[] 12:00")
	w.pass(20 * time.Minute)
	changed := w.now
	w.pass(11 * time.Minute)
	s.Granted("never", 5, 0)
	w.pass(time.Minute)
	expect("in force for twelve minutes", changed, "map[met:true refused:true] 12:41")
	w.pass(2 * time.Hour)
	expect("in force for two hours", changed, "map[met:true refused:true] 12:45")
	w.pass(26 * time.Hour)
	unmet, from := s.Unmet([]string{"met", "never"}, begun)
	if len(unmet) != 2 || w.now.Sub(from) < 24*time.Hour || w.now.Sub(from) > 25*time.Hour {
		t.Errorf("a day later: %v since %v, at %v", unmet, from, w.now)
	}
}
