// Package quotatest reads the golden vectors of the algorithms, for every test that runs them: the
// Go code, the built filter and the Redis script must give the same answers.
package quotatest

import (
	"bufio"
	_ "embed"
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/weir-proxy/weir/shared/quota"
)

//go:embed token_bucket.txt
var tokenBucket string

// Decide makes one call of cost at the instant at. It returns whether the call passed, the whole
// tokens left, and the wait.
type Decide func(at quota.Instant, cost int64) (allowed bool, left int64, retry quota.Span)

// RunTokenBucket runs every vector as a subtest against the implementation that fresh makes for
// each bucket.
func RunTokenBucket(t *testing.T, fresh func(t *testing.T, p quota.Params) Decide) {
	t.Helper()
	each(t, tokenBucket, tokenBucketLine, func(t *testing.T, b Bucket) {
		p, err := quota.NewParams(b.Quota, b.Window, b.Burst)
		if err != nil {
			t.Fatal(err)
		}
		b.run(t, fresh(t, p))
	})
}

// each runs the buckets of a vector file as subtests.
func each(t *testing.T, text string, read lineReader, run func(t *testing.T, b Bucket)) {
	t.Helper()
	buckets, err := parse(text, read)
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range buckets {
		t.Run(b.Name, func(t *testing.T) { run(t, b) })
	}
}

func (b Bucket) run(t *testing.T, decide Decide) {
	for _, step := range b.Steps {
		passed := 0
		var left int64
		var retry quota.Span
		for range step.Calls {
			var allowed bool
			allowed, left, retry = decide(step.At, step.Cost)
			if allowed {
				passed++
			}
		}
		if passed != step.Allowed || left != step.Left || retry != step.Retry {
			t.Errorf("line %d: %d passed, %d left, retry %d; want %d, %d, %d",
				step.Line, passed, left, retry, step.Allowed, step.Left, step.Retry)
		}
	}
}

// Bucket is one timeline against a fresh bucket.
type Bucket struct {
	Name       string
	Algorithm  quota.Algorithm
	Quota      int64
	Window     quota.Span
	Burst      int64
	Subwindows int
	Steps      []Step
}

// Step is Calls single calls of Cost at the instant At.
type Step struct {
	Line  int
	At    quota.Instant
	Cost  int64
	Calls int
	// Allowed is how many of the calls pass; Left the whole tokens after the last; Retry its wait
	// (0 if it passed). Delay is how long the last that passed is held back by a queue.
	Allowed int
	Left    int64
	Retry   quota.Span
	Delay   quota.Span
}

var units = map[byte]quota.Span{'s': quota.Second, 'm': quota.Minute, 'h': quota.Hour, 'd': quota.Day}

// lineReader reads the n-th line of a file into a new bucket, or a new step of the last.
type lineReader func(line string, n int, out *[]Bucket) error

// parse reads a vector file; its first lines describe the format. Errors name the line.
func parse(text string, read lineReader) ([]Bucket, error) {
	var out []Bucket
	scanner := bufio.NewScanner(strings.NewReader(text))
	for n := 1; scanner.Scan(); n++ {
		line := strings.TrimSpace(scanner.Text())
		if line == "" || line[0] == '#' {
			continue
		}
		if err := read(line, n, &out); err != nil {
			return nil, fmt.Errorf("line %d: %q: %w", n, line, err)
		}
	}
	return out, scanner.Err()
}

func tokenBucketLine(line string, n int, out *[]Bucket) error {
	var b Bucket
	var unit byte
	var window int64
	if _, err := fmt.Sscanf(line, "bucket %s burst=%d rate=%d/%d%c",
		&b.Name, &b.Burst, &b.Quota, &window, &unit); err != nil {
		return parseStep(line, n, out)
	}
	b.Window = quota.Span(window) * units[unit]
	*out = append(*out, b)
	return nil
}

func parseStep(line string, n int, out *[]Bucket) error {
	s := Step{Line: n}
	var at, retry string
	if _, err := fmt.Sscanf(line, "%s %d x%d = %d left=%d retry=%s",
		&at, &s.Cost, &s.Calls, &s.Allowed, &s.Left, &retry); err != nil {
		return err
	}
	return s.add(out, at, "-", retry)
}

// add completes the step with its times and makes it the last bucket's.
func (s Step) add(out *[]Bucket, at, delay, retry string) error {
	start, err := seconds(at)
	if err != nil {
		return err
	}
	s.At = quota.Instant(start)
	s.Delay, err = seconds(delay)
	if err != nil {
		return err
	}
	s.Retry, err = seconds(retry)
	if err != nil {
		return err
	}
	last := &(*out)[len(*out)-1]
	last.Steps = append(last.Steps, s)
	return nil
}

// seconds reads decimal seconds without a float.
func seconds(text string) (quota.Span, error) {
	switch text {
	case "-":
		return 0, nil
	case "never":
		return quota.Never, nil
	}
	whole, fraction, _ := strings.Cut(text, ".")
	micros, err := strconv.ParseInt(whole+(fraction + "000000")[:6], 10, 64)
	return quota.Span(micros), err
}
