package penalty_test

import (
	"flag"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/weir-proxy/weir/shared/penalty"
	"github.com/weir-proxy/weir/shared/quota"
)

var seed = flag.Uint64("penalty.seed", uint64(time.Now().UnixNano()), "of the games of this run")

// second is one in the milliseconds of this package.
const second = 1000

func rule(change func(*penalty.Rule)) penalty.Rule {
	r := penalty.Rule{
		Refusals: 3, Within: 10 * quota.Second,
		For: quota.Minute, Factor: 2, Max: 4 * quota.Minute, Forget: 10 * quota.Minute,
	}
	if change != nil {
		change(&r)
	}
	return r
}

// A timeline of a caller who is refused whenever it is not under a penalty.
func TestTimelines(t *testing.T) {
	type step struct {
		at   int64 // in seconds
		want string
	}
	for _, c := range []struct {
		name string
		rule penalty.Rule
		line []step
	}{
		{"three refusals within ten seconds, and not with a fourth in eleven", rule(nil), []step{
			{0, "counted"}, {5, "counted"}, {10, "counted"}, {14, "offence 1 until 74"}, {73, "penalty"},
			{74, "counted"},
		}},
		{"each offence doubles the time, up to the most", rule(nil), []step{
			{0, "counted"}, {0, "counted"}, {0, "offence 1 until 60"},
			{60, "counted"}, {60, "counted"}, {60, "offence 2 until 180"},
			{180, "counted"}, {181, "counted"}, {182, "offence 3 until 422"},
			{422, "counted"}, {422, "counted"}, {422, "offence 3 until 662"},
		}},
		{"a level is forgotten for each quiet time after the penalty", rule(nil), []step{
			{0, "counted"}, {0, "counted"}, {0, "offence 1 until 60"},
			{60, "counted"}, {60, "counted"}, {60, "offence 2 until 180"},
			{779, "counted"}, {779, "counted"}, {779, "offence 3 until 1019"},
			{2219, "counted"}, {2219, "counted"}, {2219, "offence 2 until 2339"}, // Two of three are forgotten.
			{3539, "counted"}, {3539, "counted"}, {3539, "offence 1 until 3599"},
		}},
		{"a refusal during the penalty changes nothing", rule(nil), []step{
			{0, "counted"}, {0, "counted"}, {0, "offence 1 until 60"}, {59, "penalty"}, {59, "penalty"},
			{59, "penalty"},
			{60, "counted"},
		}},
		{"with extend it makes the penalty start over", rule(func(r *penalty.Rule) { r.Extend = true }), []step{
			{0, "counted"}, {0, "counted"}, {0, "offence 1 until 60"}, {0, "penalty"}, {30, "extended until 90"},
			{89, "extended until 149"}, {149, "counted"},
		}},
		{"factor 1 is the same each time", rule(func(r *penalty.Rule) { r.Factor = 1 }), []step{
			{0, "counted"}, {0, "counted"}, {0, "offence 1 until 60"},
			{60, "counted"}, {60, "counted"}, {60, "offence 1 until 120"},
		}},
		{"one refusal is enough", rule(func(r *penalty.Rule) { r.Refusals = 1 }), []step{
			{0, "offence 1 until 60"}, {59, "penalty"}, {60, "offence 2 until 180"},
		}},
	} {
		var rec penalty.Record
		var seen penalty.Refusals
		for i, s := range c.line {
			now := s.at * second
			got := "counted"
			switch {
			case rec.InForce(now):
				got = "penalty"
				if c.rule.Extend {
					if next := c.rule.Prolong(rec, now, 0); next != rec {
						rec, got = next, "extended until "+seconds(next.Until)
					}
				}
			case seen.Add(&c.rule, now):
				rec = c.rule.Offend(rec, now, 0)
				got = "offence " + number(int64(rec.Level)) + " until " + seconds(rec.Until)
			}
			if got != s.want {
				t.Errorf("%s: step %d at %d: %s, want %s", c.name, i, s.at, got, s.want)
			}
		}
	}
}

func seconds(at int64) string { return number(at / second) }

func number(n int64) string {
	if n < 10 {
		return string(rune('0' + n))
	}
	return number(n/10) + number(n%10)
}

// randomRule returns a valid rule of the policy language.
func randomRule(random *rand.Rand) penalty.Rule {
	spans := []quota.Span{quota.Second, 10 * quota.Second, quota.Minute, quota.Hour, quota.Day}
	any := func() quota.Span { return spans[random.IntN(len(spans))] * quota.Span(1+random.IntN(9)) }
	r := penalty.Rule{
		Refusals: 1 + random.Int64N(40), Within: any(), For: any(), Factor: 1 + random.Int64N(10), Forget: any(),
		Jitter: random.Int64N(101),
	}
	r.Max = r.For + quota.Span(random.IntN(3))*any()
	return r
}

// The laws of levels and lengths, for random rules and moments.
func TestLaws(t *testing.T) {
	t.Logf("seed %d", *seed)
	random := rand.New(rand.NewPCG(*seed, 1))
	ms := func(s quota.Span) int64 { return int64(s / quota.Millisecond) }
	for range 5_000 {
		r := randomRule(random)
		top := r.Top()
		if r.Length(top, 0) != ms(r.Max) && r.Factor > 1 {
			t.Fatalf("%+v: level %d lasts %d", r, top, r.Length(top, 0))
		}
		if top > 1 && r.Length(top-1, 0) >= ms(r.Max) {
			t.Fatalf("%+v: level %d is the most already", r, top-1)
		}
		var rec penalty.Record
		now := random.Int64N(1 << 40)
		for range 10 {
			before := r.Level(rec, now)
			next := r.Offend(rec, now, random.Uint64())
			length, plain := next.Until-now, r.Length(next.Level, 0)
			switch {
			case next.Level != min(before+1, top):
				t.Fatalf("%+v: %d became %d", r, before, next.Level)
			case length < plain, length > ms(r.Max), length > plain+plain*r.Jitter/100:
				t.Fatalf("%+v: level %d lasts %d, plainly %d", r, next.Level, length, plain)
			case !next.Beats(rec) && !rec.InForce(now) && next != rec:
				t.Fatalf("%+v: %+v does not beat %+v", r, next, rec)
			}
			rec = next
			// Levels fall by one for each quiet time, and never below zero.
			quiet := random.Int64N(4 * ms(r.Forget))
			want := max(0, rec.Level-int(quiet/ms(r.Forget)))
			if got := r.Level(rec, rec.Until+quiet); got != want {
				t.Fatalf("%+v: level %d after %d is %d, want %d", r, rec.Level, quiet, got, want)
			}
			end := r.Forgotten(rec)
			if r.Level(rec, end) != 0 || rec.Level > 0 && r.Level(rec, end-1) != 1 {
				t.Fatalf("%+v: %+v is not forgotten at %d", r, rec, end)
			}
			now = rec.Until + quiet
		}
	}
}

// Records that meet in any order, any number of times, end as the same record.
func TestRecordsAgree(t *testing.T) {
	t.Logf("seed %d", *seed)
	random := rand.New(rand.NewPCG(*seed, 2))
	for range 2_000 {
		all := make([]penalty.Record, 2+random.IntN(6))
		for i := range all {
			all[i] = penalty.Record{Level: random.IntN(3), Until: random.Int64N(4)}
		}
		meet := func() (rec penalty.Record) {
			for range 3 {
				for _, i := range random.Perm(len(all)) {
					if all[i].Beats(rec) {
						rec = all[i]
					}
				}
			}
			return rec
		}
		if a, b := meet(), meet(); a != b {
			t.Fatalf("%+v end as %+v and as %+v", all, a, b)
		}
	}
}

// An offence is never found before that many refusals came within the time, and is found at the
// latest when a group more had come.
func TestRefusalsAreNeverCountedTwice(t *testing.T) {
	t.Logf("seed %d", *seed)
	random := rand.New(rand.NewPCG(*seed, 3))
	found := 0
	for range 400 {
		r := randomRule(random)
		within := int64(r.Within / quota.Millisecond)
		group := (r.Refusals + penalty.Marks - 1) / penalty.Marks
		var seen penalty.Refusals
		var log []int64 // since the last offence
		now := random.Int64N(1 << 40)
		for range 400 {
			now += random.Int64N(2*within/r.Refusals + 2)
			log = append(log, now)
			exact := int64(0)
			for _, at := range log {
				if at > now-within {
					exact++
				}
			}
			offence := seen.Add(&r, now)
			switch {
			case offence && exact < r.Refusals:
				t.Fatalf("%+v: an offence of %d refusals", r, exact)
			case !offence && exact >= r.Refusals+group-1:
				t.Fatalf("%+v: no offence of %d refusals", r, exact)
			case offence:
				log, found = nil, found+1
			}
		}
	}
	if found < 1000 {
		t.Errorf("only %d offences", found)
	}
}

func FuzzRefusals(f *testing.F) {
	f.Add(int64(5), int64(60), int64(1), int64(2))
	f.Fuzz(func(t *testing.T, refusals, within, first, then int64) {
		r := penalty.Rule{Refusals: max(refusals, 1), Within: quota.Span(max(within, 1))}
		var s penalty.Refusals
		s.Add(&r, first)
		r.Refusals = max(then, 1) // As after another policy set.
		for range 20 {
			s.Add(&r, then)
			if s.Count < 0 || s.Count > penalty.Marks {
				t.Fatalf("%d groups", s.Count)
			}
		}
	})
}
