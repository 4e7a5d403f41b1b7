// Package quotatest reads the golden vectors of the algorithms, for every test that runs them: the Go code, the built filter and
// the Redis script must give the same answers.
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

// Decide makes one call of cost at the instant at and says whether it passed, the whole tokens left, and the wait.
type Decide func(at quota.Instant, cost int64) (allowed bool, left int64, retry quota.Span)

// RunTokenBucket runs every vector as a subtest against the implementation that fresh makes for each bucket.
func RunTokenBucket(t *testing.T, fresh func(t *testing.T, p quota.Params) Decide) {
	t.Helper()
	buckets, err := Parse(tokenBucket)
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range buckets {
		t.Run(b.Name, func(t *testing.T) {
			p, err := quota.NewParams(b.Quota, b.Window, b.Burst)
			if err != nil {
				t.Fatal(err)
			}
			b.run(t, fresh(t, p))
		})
	}
}

func (b Bucket) run(t *testing.T, decide Decide) {
	for _, step := range b.Steps {
		passed := 0
		var left int64
		var retry quota.Span
		for range step.Calls {
			var allowed bool
			if allowed, left, retry = decide(step.At, step.Cost); allowed {
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
	Name   string
	Quota  int64
	Window quota.Span
	Burst  int64
	Steps  []Step
}

// Step is Calls single calls of Cost at the instant At.
type Step struct {
	Line  int
	At    quota.Instant
	Cost  int64
	Calls int
	// Allowed is how many of the calls pass; Left the whole tokens after the last; Retry its wait (0 if it passed).
	Allowed int
	Left    int64
	Retry   quota.Span
}

// Parse reads the vector file format described at the top of token_bucket.txt. Errors name the line.
func Parse(text string) ([]Bucket, error) {
	var out []Bucket
	scanner := bufio.NewScanner(strings.NewReader(text))
	for n := 1; scanner.Scan(); n++ {
		line := strings.TrimSpace(scanner.Text())
		if line == "" || line[0] == '#' {
			continue
		}
		if err := parseLine(line, n, &out); err != nil {
			return nil, fmt.Errorf("line %d: %q: %w", n, line, err)
		}
	}
	return out, scanner.Err()
}

func parseLine(line string, n int, out *[]Bucket) error {
	if strings.HasPrefix(line, "bucket ") {
		var b Bucket
		var unit byte
		var window int64
		if _, err := fmt.Sscanf(line, "bucket %s burst=%d rate=%d/%d%c", &b.Name, &b.Burst, &b.Quota, &window, &unit); err != nil {
			return err
		}
		b.Window = quota.Span(window) * map[byte]quota.Span{'s': quota.Second, 'm': quota.Minute, 'h': quota.Hour, 'd': quota.Day}[unit]
		*out = append(*out, b)
		return nil
	}
	s := Step{Line: n}
	var at, retry string
	if _, err := fmt.Sscanf(line, "%s %d x%d = %d left=%d retry=%s", &at, &s.Cost, &s.Calls, &s.Allowed, &s.Left, &retry); err != nil {
		return err
	}
	atSpan, err := seconds(at)
	if err != nil {
		return err
	}
	s.At = quota.Instant(atSpan)
	if s.Retry, err = seconds(retry); err != nil {
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
