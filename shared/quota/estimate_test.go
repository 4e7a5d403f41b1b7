package quota_test

import (
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/weir-proxy/weir/shared/quota"
)

var printed = flag.Bool("print", false, "print the tables of docs/choose/algorithms.md instead of checking them")

const (
	estimatedQuota  = 100
	estimatedWindow = quota.Minute
	estimatedFor    = 120 // windows
)

// loads are the loads of callers, as multiples of the limit.
var loads = []float64{0.5, 0.9, 1, 1.5, 3}

// An arrival makes the instants of one caller's requests, in order: load times the quota in each
// window on average.
type arrival func(r *rand.Rand, load float64) []quota.Instant

// traffic has the rows of the tables. A row adds up its callers, whose windows begin at different
// times.
var traffic = []struct {
	name    string
	callers int
	// share returns the share of the n-th caller in the load, from 1.
	share func(n int) float64
	arrival
}{
	{"evenly spaced", 2, alike, even},
	{"by chance (Poisson)", 4, alike, poisson},
	{"a day of Poisson, peak 9 × night", 1, alike, day},
	{"20 at once, the bursts by chance", 4, alike, bursts},
	{"a job: all at once, each minute", 10, alike, job},
	{"an attacker who knows the windows", 1, alike, attack},
	{"1000 callers, the n-th sends 1/n", 1000, zipf, poisson},
}

func alike(int) float64 { return 1 }

func zipf(n int) float64 { return 1 / float64(n) }

func even(_ *rand.Rand, load float64) (at []quota.Instant) {
	gap := float64(estimatedWindow) / (load * estimatedQuota)
	for i := 0.0; i*gap < float64(estimatedFor*estimatedWindow); i++ {
		at = append(at, quota.Instant(i*gap))
	}
	return at
}

func poisson(r *rand.Rand, load float64) (at []quota.Instant) {
	mean := float64(estimatedWindow) / (load * estimatedQuota)
	for t := r.ExpFloat64() * mean; t < float64(estimatedFor*estimatedWindow); t += r.ExpFloat64() * mean {
		at = append(at, quota.Instant(t))
	}
	return at
}

// day is a whole day, so that the load changes as slowly as it does.
func day(r *rand.Rand, load float64) (at []quota.Instant) {
	const windows, swing = 24 * 60, 0.8
	mean := float64(estimatedWindow) / (load * (1 + swing) * estimatedQuota)
	for t := r.ExpFloat64() * mean; t < float64(windows*estimatedWindow); t += r.ExpFloat64() * mean {
		wave := 1 - swing*math.Cos(2*math.Pi*t/float64(windows*estimatedWindow))
		if r.Float64()*(1+swing) < wave {
			at = append(at, quota.Instant(t))
		}
	}
	return at
}

func bursts(r *rand.Rand, load float64) (at []quota.Instant) {
	for _, first := range poisson(r, load/20) {
		for range 20 {
			at = append(at, first)
		}
	}
	return at
}

func job(_ *rand.Rand, load float64) (at []quota.Instant) {
	for window := range estimatedFor {
		for range int(load * estimatedQuota) {
			at = append(at, quota.Instant(window)*quota.Instant(estimatedWindow))
		}
	}
	return at
}

// attack is quiet in the first of three windows until its last millisecond, sends half of
// everything there, and the other half evenly over the second: the counter takes the burst for
// requests that came evenly, and forgets it too early.
func attack(_ *rand.Rand, load float64) (at []quota.Instant) {
	half := int(load * estimatedQuota * 3 / 2)
	for cycle := 0; cycle+3 <= estimatedFor; cycle += 3 {
		second := quota.Instant(cycle+1) * quota.Instant(estimatedWindow)
		for range half {
			at = append(at, second-quota.Instant(quota.Millisecond))
		}
		for i := range half {
			at = append(at, second+quota.Instant(
				i+1)*quota.Instant(estimatedWindow-2*quota.Millisecond)/quota.Instant(half))
		}
	}
	return at
}

// verdicts compares the counter's decisions with an exact log of the requests that the counter
// itself has let through.
type verdicts struct {
	requests, wronglyAllowed, wronglyRefused int
	// passed is the number of requests that the counter let through, exactly the number of a log
	// that gets the same requests.
	passed, exactly int
	// most is the number of requests in the fullest window.
	most int64
}

func (v *verdicts) judge(t *testing.T, at []quota.Instant, offset uint64) {
	counter := windowsOf(t, quota.SlidingWindowCounter, estimatedQuota, estimatedWindow, 0).At(offset)
	exact := windowsOf(t, quota.SlidingLog, estimatedQuota, estimatedWindow, 0)
	var estimate, log, alone quota.History
	for _, now := range at {
		now += quota.Instant(estimatedWindow) // The offset moves the first window before the start of time.
		exact.Advance(&log, now)
		fits := exact.Remaining(&log) > 0
		allowed := counter.Take(&estimate, now, 1).Allowed
		v.requests++
		switch {
		case allowed && !fits:
			v.wronglyAllowed++
		case !allowed && fits:
			v.wronglyRefused++
		}
		if exact.Take(&alone, now, 1).Allowed {
			v.exactly++
		}
		if allowed {
			v.passed++
			exact.Add(&log, now, 1)
			v.most = max(v.most, passedOf(log))
		}
	}
}

func passedOf(log quota.History) (n int64) {
	for _, m := range log.Marks {
		n += m.Count
	}
	return n
}

// estimated is how a row of the traffic fares at a load. It is the same in every run: the seed is
// the index in the table.
func estimated(t *testing.T, row, column int) (v verdicts) {
	r := rand.New(rand.NewPCG(uint64(row), uint64(column)))
	of := traffic[row]
	for n := range of.callers {
		at := of.arrival(r, loads[column]*of.share(n+1))
		v.judge(t, at, offsetOf(n, of.callers))
	}
	return v
}

// offsetOf spreads the windows of several callers evenly. The windows of a single caller begin at
// 0, as the attacker knows.
func offsetOf(n, callers int) uint64 {
	if callers == 1 {
		return 0
	}
	return uint64(2*n+1) * uint64(estimatedWindow) / uint64(2*callers)
}

func percent(part, whole int) string { return fmt.Sprintf("%.2f", 100*float64(part)/float64(whole)) }

// tables is the part of the page that is measured.
func tables(t *testing.T) string {
	shown := []struct {
		title string
		cell  func(v verdicts) string
	}{
		{"let through although the window was full, % of requests",
			func(v verdicts) string { return percent(v.wronglyAllowed, v.requests) }},
		{"refused although the window had room, % of requests",
			func(v verdicts) string { return percent(v.wronglyRefused, v.requests) }},
		{"passed in all, % of the requests that an exact log lets through",
			func(v verdicts) string { return percent(v.passed, v.exactly) }},
		{"most that passed in any minute, of a quota of 100", func(v verdicts) string { return fmt.Sprint(v.most) }},
	}
	results := make([][]verdicts, len(traffic))
	for row := range traffic {
		for column := range loads {
			results[row] = append(results[row], estimated(t, row, column))
		}
	}
	var parts []string
	for _, table := range shown {
		text := fmt.Sprintf("| %s |%s\n|%s\n", table.title, columns(" %g × |"), strings.Repeat(" --- |", len(loads)+1))
		for row, of := range traffic {
			text += "| " + of.name + " |"
			for _, v := range results[row] {
				text += " " + table.cell(v) + " |"
			}
			text += "\n"
		}
		parts = append(parts, text)
	}
	return strings.Join(append(parts, jobs(t)), "\n")
}

// jobs returns the table of the requests that each algorithm lets through for a job that sends its
// whole quota at once, each window, and does not repeat refused requests.
func jobs(t *testing.T) string {
	head, line, cells := "| of the job at 1 ×, % |", "\n| --- |", "\n| pass |"
	for _, a := range []quota.Algorithm{quota.TokenBucket, quota.FixedWindow, quota.SlidingLog,
		quota.SlidingWindowCounter, quota.SlidingWindow} {
		passed, sent := 0, 0
		for n := range 10 {
			take := taking(t, a, offsetOf(n, 10))
			for _, now := range job(nil, 1) {
				sent++
				if take(now + quota.Instant(estimatedWindow)) {
					passed++
				}
			}
		}
		head += " `" + a.String() + "` |"
		line += " --- |"
		cells += " " + percent(passed, sent) + " |"
	}
	return head + line + cells + "\n"
}

// taking is a bucket of its own, whose windows are moved by an offset.
func taking(t *testing.T, a quota.Algorithm, offset uint64) func(now quota.Instant) bool {
	if a == quota.TokenBucket {
		p, err := quota.NewParams(estimatedQuota, estimatedWindow, estimatedQuota)
		if err != nil {
			t.Fatal(err)
		}
		var s quota.State
		return func(now quota.Instant) bool {
			var r quota.Result
			s, r = p.Take(s, now, 1)
			return r.Allowed
		}
	}
	w := windowsOf(t, a, estimatedQuota, estimatedWindow, quota.DefaultSubwindows)
	if a != quota.SlidingLog {
		w = w.At(offset)
	}
	var h quota.History
	return func(now quota.Instant) bool { return w.Take(&h, now, 1).Allowed }
}

func columns(format string) (text string) {
	for _, load := range loads {
		text += fmt.Sprintf(format, load)
	}
	return text
}

// The page shows how wrong the weighted counter is. The figures come from here, and are the same on
// every machine.
func TestTheCountersErrorIsWhatThePageSays(t *testing.T) {
	want := tables(t)
	if *printed {
		fmt.Print(want)
		return
	}
	page, err := os.ReadFile("../../docs/choose/algorithms.md")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(page), want) {
		t.Errorf("docs/choose/algorithms.md should show (go test ./shared/quota -run CountersError -print):\n%s",
			want)
	}
}

// The arrivals match their names: they are in order, and have the load in the table's head.
func TestArrivalsHaveTheirLoad(t *testing.T) {
	for row, of := range traffic {
		for _, load := range loads {
			at := of.arrival(rand.New(rand.NewPCG(uint64(row), 0)), load)
			if !slices.IsSorted(at) {
				t.Errorf("%s: not in order", of.name)
			}
			windows := float64(at[len(at)-1]) / float64(estimatedWindow)
			if got := float64(len(at)) / windows / estimatedQuota; math.Abs(got-load) > load/10 {
				t.Errorf("%s: a load of %g instead of %g", of.name, got, load)
			}
		}
	}
}
