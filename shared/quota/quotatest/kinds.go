package quotatest

import (
	_ "embed"
	"fmt"
	"testing"

	"github.com/weir-proxy/weir/shared/quota"
)

//go:embed windows.txt
var windows string

//go:embed queue.txt
var queue string

// RunWindows runs every vector of the window algorithms as a subtest against the implementation
// that fresh makes for each bucket.
func RunWindows(t *testing.T, fresh func(t *testing.T, w quota.Windows) Decide) {
	t.Helper()
	each(t, windows, windowsBucket, func(t *testing.T, b Bucket) {
		w, err := quota.NewWindows(b.Algorithm, b.Quota, b.Window, b.Subwindows)
		if err != nil {
			t.Fatal(err)
		}
		b.run(t, fresh(t, w))
	})
}

// Enqueue makes one call at the instant at. It returns whether the call found a place, how long it
// is held back, and how long a refused call would have to wait for a place.
type Enqueue func(at quota.Instant) (accepted bool, delay, retry quota.Span)

// RunQueue runs every vector of the leaky bucket as a queue; p are the figures of a bucket of one
// more than the places.
func RunQueue(t *testing.T, fresh func(t *testing.T, p quota.Params) Enqueue) {
	t.Helper()
	each(t, queue, queueBucket, func(t *testing.T, b Bucket) {
		p, err := quota.NewParams(b.Quota, b.Window, b.Burst)
		if err != nil {
			t.Fatal(err)
		}
		enqueue := fresh(t, p)
		for _, step := range b.Steps {
			accepted := 0
			var delay, retry quota.Span
			for range step.Calls {
				ok, held, wait := enqueue(step.At)
				if ok {
					accepted, delay = accepted+1, held
					continue
				}
				retry = wait
			}
			if accepted != step.Allowed || delay != step.Delay || retry != step.Retry {
				t.Errorf("line %d: %d accepted, the last delayed by %d, retry %d; want %d, %d, %d",
					step.Line, accepted, delay, retry, step.Allowed, step.Delay, step.Retry)
			}
		}
	})
}

func windowsBucket(line string, n int, out *[]Bucket) error {
	var b Bucket
	var algorithm string
	var length int64
	var unit byte
	if _, err := fmt.Sscanf(line, "bucket %s %s quota=%d window=%d%c subwindows=%d",
		&b.Name, &algorithm, &b.Quota, &length, &unit, &b.Subwindows); err != nil {
		return parseStep(line, n, out)
	}
	for b.Algorithm.String() != algorithm {
		if b.Algorithm++; int(b.Algorithm) == quota.AlgorithmCount {
			return fmt.Errorf("no algorithm is called %s", algorithm)
		}
	}
	b.Window = quota.Span(length) * units[unit]
	*out = append(*out, b)
	return nil
}

func queueBucket(line string, n int, out *[]Bucket) error {
	var b Bucket
	var unit byte
	var length int64
	if _, err := fmt.Sscanf(line, "bucket %s places=%d rate=%d/%d%c",
		&b.Name, &b.Burst, &b.Quota, &length, &unit); err == nil {
		b.Burst++
		b.Window = quota.Span(length) * units[unit]
		*out = append(*out, b)
		return nil
	}
	s := Step{Line: n}
	var at, delay, retry string
	if _, err := fmt.Sscanf(line, "%s x%d = %d delay=%s retry=%s",
		&at, &s.Calls, &s.Allowed, &delay, &retry); err != nil {
		return err
	}
	return s.add(out, at, delay, retry)
}
