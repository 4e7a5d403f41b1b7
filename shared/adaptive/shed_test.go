package adaptive_test

import (
	"fmt"
	"testing"

	"github.com/weir-proxy/weir/shared/adaptive"
	"github.com/weir-proxy/weir/shared/quota"
)

// A limit at its maximum keeps a part for the first class, whichever classes are shed and however
// near its minimum is, and gives every class a place. It gives the first class no less than the
// other classes.
func TestALimitAtItsMostKeepsAPart(t *testing.T) {
	for _, c := range []adaptive.Config{{Min: 1, Max: 13}, {Min: 13, Max: 13}, {Min: 20, Max: 20}, {Min: 10, Max: 20},
		{Min: 2, Max: 2}, {Min: 20, Max: 2000}, {Min: 95, Max: 100}} {
		for classes := 2; classes <= 4; classes++ {
			for share := 0.0; share <= float64(classes-1); share += 0.25 {
				t.Run(fmt.Sprint(c, classes, share), func(t *testing.T) {
					l, shed := adaptive.Limit{Value: float64(c.Max)}, &adaptive.Shed{Share: share}
					room := make([]int64, classes)
					for class := range room {
						room[class] = l.Room(adaptive.Rank{Class: uint8(class)}, shed, classes, c)
						if class > 0 && room[class] > room[class-1] || room[class] < 1 {
							t.Errorf("the rooms are %v", room)
						}
					}
					if room[0] != c.Max {
						t.Errorf("the first class has room for %d of %d", room[0], c.Max)
					}
					if kept, least := room[0]-room[1], max(min(c.Max/8, c.Max-1), 1); kept < least {
						t.Errorf("%d of %d are kept for the first class, want %d at least", kept, c.Max, least)
					}
				})
			}
		}
	}
}

// load makes a load from the numbers of shed, refused and arrived requests.
func load(shed, refused uint32, arrived ...uint32) *adaptive.Load {
	l := &adaptive.Load{Shed: shed, Refused: refused}
	copy(l.Arrived[:], arrived)
	return l
}

const calmly = adaptive.Pressure(-1)

// However long the pressure lasts, a tenth of the callers of the first class passes.
func TestATenthOfTheFirstClassPasses(t *testing.T) {
	for classes := 1; classes <= 3; classes++ {
		var s adaptive.Shed
		for second := range 20 {
			s.Next(classes, 0, load(0, 0, []uint32{100, 100, 100}[:classes]...), 1, quota.Second)
			passing := 0
			for cohort := range uint8(adaptive.Cohorts) {
				if !s.Sheds(adaptive.Rank{Cohort: cohort}, classes) {
					passing++
				}
			}
			if passing < adaptive.Cohorts/10 {
				t.Fatalf("%d classes: after %d s %d of %d cohorts pass", classes, second+1, passing, adaptive.Cohorts)
			}
		}
	}
}

// Where only classes come that are never shed, or classes before the classes that could be shed, no
// class is shed for them: a later caller of a quiet service is let through at once.
func TestClassesThatDoNotComeAreNotShed(t *testing.T) {
	var s adaptive.Shed
	for range 100 { // The first class alone is far too much.
		s.Next(2, 1, load(0, 60, 100), calmly, adaptive.ShedEvery)
	}
	if s.Share > 0 {
		t.Errorf("the class that has not come is shed: %.2f", s.Share)
	}
	s = adaptive.Shed{}
	for range 20 { // The middle class is too much: the last one goes before it.
		s.Next(3, 1, load(0, 30, 10, 90), calmly, adaptive.ShedEvery)
	}
	if s.Share <= 1 || s.Share > 2 {
		t.Errorf("%.2f classes are shed where the middle one is too much", s.Share)
	}
}

// If all that comes is shed, as after an overload, a class comes back within a second.
func TestAnIdleServiceIsSoonOpen(t *testing.T) {
	s, passed := adaptive.Shed{Share: 2}, quota.Span(0)
	for s.Share > 0 && passed < quota.Minute {
		arrived := load(0, 0, 0, 0, 2)
		for range 2 {
			if s.Sheds(adaptive.Rank{Class: 2, Cohort: 127}, 3) {
				arrived.Shed++
			}
		}
		s.Next(3, 1, arrived, calmly, adaptive.ShedEvery)
		passed += adaptive.ShedEvery
	}
	if passed > 2*quota.Second+2*adaptive.ShedEvery {
		t.Errorf("the last class of a quiet service was shed for %d ms", passed/quota.Millisecond)
	}
}
