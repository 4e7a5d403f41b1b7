package leasing_test

import (
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/wire"
)

// A timeline is words at instants, in microseconds: a letter asks for its bucket, two letters for
// both at once; "+" answers the oldest call, "x" answers it 503, and "." looks again, like a tick
// of a worker in which requests gather. After "=" are the calls that leave then, by the number of
// their buckets. A call that was under way before never ends.
func TestWhenCallsLeave(t *testing.T) {
	for name, timeline := range map[string]string{
		"on an idle path each goes at once":   "0:a=1 400:+ 500:b=1 900:+ 9000:c=1 9400:+",
		"requests that come meanwhile share":  "0:a=1 100:b 200:c 300:d 400:+=3 800:+",
		"requests for several buckets too":    "0:a=1 100:bc 200:d 300:ef 400:+=5 800:+",
		"one bucket is one item":              "0:a=1 100:b 200:b 300:b 400:+=1 800:+",
		"one in a call waits for that":        "0:a=1 100:a 1100:.  1200:+=1 1300:+",
		"a call that hangs holds for a gap":   "0:a=1 100:b 900:c 999:. 1000:.=2 1100:d 1500:x 1900:+=1 1950:+",
		"a request is a look, too":            "0:a=1 100:b 1500:c=2 1600:+ 1700:+",
		"half a round trip is the gap":        "0:a=1 4000:+ 5000:b=1 5100:c 6999:. 7000:.=1 9000:+ 9100:+",
		"but 5 ms at most":                    "0:a=1 40000:+ 50000:b=1 50100:c 54999:. 55000:.=1 60000:+ 60000:+",
		"requests gathered behind a failure":  "0:a=1 100:b 400:x=1 900:+",
		"who left the queue makes no call":    "0:a=1 100:b 200:B 400:+",
		"after the last answer none gathers":  "0:a=1 100:b 400:+=1 800:+ 801:c=1 900:+",
		"a gap begins when the last one left": "0:a=1 100:b 1000:.=1 1100:c 1999:. 2000:.=1 2100:+ 2200:+ 2300:+",
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, 100, quota.Hour, 100)
			begin := w.now
			streams := map[string]uint32{}
			for word := range strings.FieldsSeq(timeline) {
				at, what, _ := strings.Cut(word, ":")
				micros, err := strconv.Atoi(at)
				if err != nil {
					t.Fatal(err)
				}
				w.now = begin + quota.Instant(micros)
				what, want, _ := strings.Cut(what, "=")
				before := len(w.calls)
				switch {
				case what == ".":
					w.client.Flush(w.now)
				case what == "+":
					before--
					w.reply(slices.Repeat([]wire.LeaseAnswer{{Waiting: waiting(w.calls[0])}},
						len(w.calls[0].request.Items))...)
				case what == "x":
					before--
					p := w.calls[0]
					w.calls = w.calls[1:]
					p.done(503, nil)
				case what < "a":
					w.client.Cancel(streams[strings.ToLower(what)])
				default:
					w.joinAll(t, []byte(what)...)
					streams[what] = w.stream
				}
				var sizes []string
				for _, p := range w.calls[before:] {
					sizes = append(sizes, strconv.Itoa(len(p.request.Items)))
				}
				if got := strings.Join(sizes, ","); got != want {
					t.Errorf("at %s leave calls of %q buckets, want %q", word, got, want)
				}
			}
			if len(w.calls) > 0 || w.client.Waiting() > 0 {
				t.Errorf("%d calls are under way, %d requests wait", len(w.calls), w.client.Waiting())
			}
		})
	}
}

// waiting is how many requests a call's first item is for.
func waiting(p pending) int64 { return p.request.Items[0].Waiting }

// The more requests come, the more of them share a call: the number of calls settles. No request
// fails below the control plane's capacity, and a request waits little longer than a round trip. A
// control plane that works 220 µs on a call for one bucket would be overrun by 5000 requests a
// second in calls of their own.
func TestCallsCarryMoreTheMoreIsAsked(t *testing.T) {
	seed := rand.Uint64()
	for _, way := range []quota.Span{100, 2000, 15_000} {
		l := newLab(t, seed)
		l.way = way
		trip := 2*way + l.perCall + l.perItem
		most := trip + min(max(trip/2, quota.Millisecond), 5*quota.Millisecond) +
			3*wire.MaxItems*l.perItem + quota.Millisecond
		before := 1.0
		for _, rate := range []float64{20, 500, 3000, 6000, 500} {
			l.send(rate, quota.Second)
			s := l.send(rate, 2*quota.Second)
			t.Logf("way %d µs, %.0f/s: %.3f calls a request, waits p50 %d, p99 %d, most %d µs, calls in a tenth %d",
				way, rate, s.perRequest(), s.wait(0.5), s.wait(0.99), s.wait(1), s.perTenth)
			if s.failed > 0 || s.wait(1) > most {
				t.Errorf("seed %d, way %d µs, %.0f/s: %d of %d failed, and they waited up to %d µs; %d µs are enough",
					seed, way, rate, s.failed, s.requests, s.wait(1), most)
			}
			if rate >= 3000 && slices.Max(s.perTenth)*2 > slices.Min(s.perTenth)*3 {
				t.Errorf("seed %d, way %d µs, %.0f/s: the number of calls does not settle: %d", seed, way, rate,
					s.perTenth)
			}
			if got := s.perRequest(); rate > 500 && got > before || rate == 20 && got < 0.9 {
				t.Errorf("seed %d, way %d µs, %.0f/s: %.3f calls a request, %.3f at the lower rate", seed, way, rate,
					got, before)
			}
			before = s.perRequest()
		}
	}
}

// Calls that hang take the requests along that they carry, and hold no others back.
func TestACallThatHangsHoldsNoOthers(t *testing.T) {
	seed := rand.Uint64()
	for _, rate := range []float64{20, 500, 5000} {
		l := newLab(t, seed)
		l.hangs = 0.005
		s := l.send(rate, 10*quota.Second)
		served := s.waits[:len(s.waits)-l.hung]
		t.Logf("%.0f/s: %d of %d in calls that hung, the others waited up to %d µs", rate, l.hung, s.requests,
			served[len(served)-1])
		if s.failed != l.hung || served[len(served)-1] > 10*quota.Millisecond {
			t.Errorf("seed %d, %.0f/s: %d failed, %d were in calls that hung; the others waited up to %d µs",
				seed, rate, s.failed, l.hung, served[len(served)-1])
		}
	}
}

// A control plane that becomes ten times slower and recovers gets the same calls as before.
func TestTheNumberOfCallsComesBack(t *testing.T) {
	seed := rand.Uint64()
	l := newLab(t, seed)
	before := l.send(5000, 2*quota.Second)
	l.perCall *= 10
	slow := l.send(5000, 2*quota.Second)
	l.perCall /= 10
	l.send(5000, quota.Second)
	after := l.send(5000, 2*quota.Second)
	t.Logf("%.3f calls a request, %.3f while it is slow, %.3f after", before.perRequest(), slow.perRequest(),
		after.perRequest())
	if slow.perRequest() > before.perRequest()/2 || after.perRequest() < before.perRequest()*9/10 ||
		slow.failed+after.failed > 0 {
		t.Errorf("seed %d: %.3f, %.3f and %.3f calls a request, %d failed", seed, before.perRequest(),
			slow.perRequest(),
			after.perRequest(), slow.failed+after.failed)
	}
}
