package rpc

import (
	"strconv"
	"strings"
	"testing"

	"github.com/weir-proxy/weir/shared/quota"
)

// A timeline is words at instants, in milliseconds: "S" a call leaves, "A" one is answered, "F"
// fails, "U" could not be sent; "P" a probe leaves by a tick, which must be due, "p" a tick at
// which none is; "a" and "f" the probe is answered, or fails; "H" another worker was answered.
// After each word the breaker is closed, or open behind "!". The jitter is 512: a pause of 250 ms
// lasts 187.
func TestBreakerTimelines(t *testing.T) {
	for name, timeline := range map[string]string{
		"three in a row open it":               "0:S 5:F 5:S 9:F 9:S 14:F!",
		"an answer in between does not":        "0:S 5:F 5:S 9:F 9:S 14:A 20:S 25:F 30:S 35:F",
		"a call that cannot be sent":           "0:S 0:U!",
		"a second of silence, calls that hang": "0:S 300:S 999:p 1000:p!",
		"an answer ends a silence":             "0:S 300:S 900:A 1000:p 1899:p 1900:p!",
		"a second of calls that fail":          "0:S 50:F 980:S 1030:F!",
		"calls far apart are no silence":       "0:S 50:F 5000:S 5050:F 10000:S 10020:A",
		"far apart, but three":                 "0:S 50:F 5000:S 5050:F 10000:S 10050:F!",
		"one probe after each pause": "0:S 0:U! 187:p! 188:P! 190:p! 238:f! " + // 375 ms follow, then 750 for good
			"612:p! 613:P! 663:f! 1412:p! 1413:P! 1463:f! 2212:p! 2213:P! 2263:f! 3012:p! 3013:P!",
		"two answered probes close it": "0:S 0:U! 188:P! 190:a! 377:p! 378:P! 380:a 381:p",
		"a probe that fails in between": "0:S 0:U! 188:P! 190:a! 378:P! 428:f! 802:p! 803:P! 805:a! " +
			"993:P! 995:a",
		"it starts anew": "0:S 0:U! 188:P! 190:a! 378:P! 380:a 400:S 405:F 410:S 415:F " +
			"420:S 425:F! 612:p! 613:P!",
		"calls from before it opened":             "0:S 0:S 0:S 0:S 0:S 50:F 50:F 50:F! 50:F! 50:A! 237:p! 238:P!",
		"another worker was answered":             "0:S 0:U! 10:H! 10:P! 12:a! 199:p! 200:P! 202:a",
		"hastened, and not answered all the same": "0:S 0:U! 10:H! 10:P! 60:f! 434:p! 435:P!",
		"nothing hastens a closed breaker":        "0:H 5:p",
	} {
		t.Run(name, func(t *testing.T) {
			var b Breaker
			for word := range strings.FieldsSeq(timeline) {
				at, what, _ := strings.Cut(word, ":")
				ms, err := strconv.Atoi(at)
				if err != nil {
					t.Fatal(err)
				}
				now := quota.Instant(1_000_000 + ms*1000)
				if what = b.play(t, word, now, what); b.IsOpen() != (what == "!") {
					t.Fatalf("at %s it is open: %v", word, b.IsOpen())
				}
			}
		})
	}
}

// play does the first letter of what, and returns the rest.
func (b *Breaker) play(t *testing.T, word string, now quota.Instant, what string) string {
	switch what[0] {
	case 'S':
		b.Sent(now)
	case 'A', 'a':
		b.Answered(now, what[0] == 'a', 512)
	case 'F', 'U', 'f':
		b.Failed(now, what[0] == 'f', what[0] == 'U', 512)
	case 'P', 'p':
		due, open := b.NextDue(now), b.IsOpen()
		probe := b.Tick(now, 512)
		if probe != (what[0] == 'P') {
			t.Fatalf("at %s a probe is due: %v", word, probe)
		}
		if (probe || b.IsOpen() != open) && due > now {
			t.Errorf("at %s: the tick was due at %d only", word, due)
		}
		if probe {
			b.Sent(now)
		}
	case 'H':
		b.Hasten(now)
	}
	return what[1:]
}

// Nodes that lost the control plane at once come back at different times.
func TestPausesAreSpread(t *testing.T) {
	if least, most := Spread(probePauses.Longest, 0), Spread(probePauses.Longest, 1023); least !=
		quota.Instant(quota.Second)/2 || most < 999_000 || most >= 1_000_000 {
		t.Errorf("a pause of a second lasts %d to %d µs", least, most)
	}
}
