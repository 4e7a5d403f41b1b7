package client

import (
	"cmp"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Limit is the state of one policy in an answer.
type Limit struct {
	// Name is the name of the policy, bucket or resource; empty if the dialect has no names.
	Name string
	// Quota is the number of requests that an idle caller may send at once; 0 if the answer does
	// not name it. Left is the number of them that are left.
	Quota, Left int64
	// Reset is the time until the bucket is full again; on a refusal, until one request passes.
	Reset time.Duration
}

// Limits are all limits in an answer. The zero value has none.
type Limits struct {
	// Policies are the policies in the first of these dialects that the answer has: RateLimit of
	// draft 11, RateLimit-Remaining of draft 03, X-RateLimit-Remaining, X-Rate-Limit-Remaining.
	Policies []Limit
	// RetryAfter is the wait in Retry-After; 0 without the field.
	RetryAfter time.Duration
	// HasRetryAfter reports whether the answer has a valid Retry-After.
	HasRetryAfter bool
}

// tooDear reports whether each policy has tokens left. A refusal then means that the request costs
// more than the tokens left; other requests may still pass.
func (l Limits) tooDear() bool {
	empty := func(p Limit) bool { return p.Left == 0 }
	return len(l.Policies) > 0 && !slices.ContainsFunc(l.Policies, empty)
}

const (
	// maxField is the largest number of bytes of a field that is read, maxPolicies the largest
	// number of its items.
	maxField    = 4096
	maxPolicies = 16
	// forever is the longest time that is believed: about thirty years.
	forever = 1e9 * time.Second
	// From epoch on, a number is a Unix time in seconds, and from epochMillis on in milliseconds.
	// Smaller numbers are seconds from now.
	epoch, epochMillis = 1e9, 1e12
)

// item matches one item of a structured field, a name and its parameters; param matches one
// parameter, and number a number.
var (
	item = regexp.MustCompile(`^\s*(?:"((?:[^"\\]|\\.)*)"|([A-Za-z*][\w:/.*-]*))` +
		`((?:\s*;\s*[a-z*][\w.*-]*(?:=(?:"(?:[^"\\]|\\.)*"|[^;,"\s]*))?)*)\s*(?:,|$)`)
	param  = regexp.MustCompile(`;\s*([a-z*][\w.*-]*)=("(?:[^"\\]|\\.)*"|[^;,"\s]*)`)
	number = regexp.MustCompile(`^\d{1,15}(?:\.\d{1,6})?$`)
)

// Read reads the limits in an answer that arrived at now. A field or number that is malformed,
// negative or too long counts as absent.
func Read(h http.Header, now time.Time) (l Limits) {
	server := now
	if date, err := http.ParseTime(h.Get("Date")); err == nil {
		server = date
	}
	l.RetryAfter, l.HasRetryAfter = readRetryAfter(joinLines(h, "Retry-After"), server)
	l.Policies = readDraft11(h)
	for _, prefix := range []string{"RateLimit-", "X-RateLimit-", "X-Rate-Limit-"} {
		if len(l.Policies) == 0 {
			l.Policies = readTrio(h, prefix, server)
		}
	}
	return l
}

// joinLines returns all lines of a field as one value. A value over maxField bytes counts as empty.
func joinLines(h http.Header, name string) string {
	value := strings.TrimSpace(strings.Join(h.Values(name), ", "))
	if len(value) > maxField {
		return ""
	}
	return value
}

// readNumber reads digits with an optional fraction. A sign or an exponent makes it fail.
func readNumber(text string) (float64, bool) {
	text = strings.TrimSpace(text)
	if !number.MatchString(text) {
		return 0, false
	}
	n, err := strconv.ParseFloat(text, 64)
	return n, err == nil
}

// toSeconds returns n seconds, and forever for a longer time.
func toSeconds(n float64) time.Duration {
	return time.Duration(min(n, forever.Seconds()) * float64(time.Second))
}

// readRetryAfter reads a date or seconds; of several numbers the largest counts.
func readRetryAfter(value string, server time.Time) (wait time.Duration, ok bool) {
	if date, err := http.ParseTime(value); err == nil {
		return min(max(date.Sub(server), 0), forever), true
	}
	for _, part := range strings.Split(value, ",") {
		n, valid := readNumber(part)
		if !valid {
			return 0, false
		}
		wait = max(wait, toSeconds(n))
	}
	return wait, true
}

// readDraft11 reads RateLimit, and the quotas and windows in RateLimit-Policy.
func readDraft11(h http.Header) (all []Limit) {
	policies := map[string]map[string]float64{}
	for _, it := range readItems(joinLines(h, "RateLimit-Policy")) {
		if policies[it.name] == nil {
			policies[it.name] = it.params
		}
	}
	for _, it := range readItems(joinLines(h, "RateLimit")) {
		policy := policies[it.name]
		left, hasLeft := it.params["r"]
		reset, hasReset := it.params["t"]
		if !hasReset {
			reset, hasReset = policy["w"]
		}
		known := slices.ContainsFunc(all, func(l Limit) bool { return l.Name == it.name })
		if hasLeft && hasReset && !known {
			all = append(all, newLimit(it.name, policy["q"], left, reset))
		}
	}
	return all
}

func newLimit(name string, quota, left, reset float64) Limit {
	return Limit{Name: name, Quota: int64(quota), Left: int64(left), Reset: toSeconds(reset)}
}

type fieldItem struct {
	name   string
	params map[string]float64
}

// readItems reads a list of items and their parameters that are numbers. If any part of the list is
// malformed, it returns no items: structured fields require this.
func readItems(value string) (items []fieldItem) {
	for len(value) > 0 {
		m := item.FindStringSubmatch(value)
		if m == nil {
			return nil
		}
		value = value[len(m[0]):]
		it := fieldItem{name: m[1] + m[2], params: map[string]float64{}}
		for _, p := range param.FindAllStringSubmatch(m[3], -1) {
			if n, ok := readNumber(p[2]); ok {
				it.params[p[1]] = n
			}
		}
		if len(items) < maxPolicies {
			items = append(items, it)
		}
	}
	return items
}

// readTrio reads the fields Limit, Remaining and Reset of an older dialect. Envoy's Limit is a list
// whose first number is the limit. Reset is a number of seconds, or a Unix time.
func readTrio(h http.Header, prefix string, server time.Time) []Limit {
	left, ok := readNumber(joinLines(h, prefix+"Remaining"))
	if !ok {
		return nil
	}
	first, _, _ := strings.Cut(joinLines(h, prefix+"Limit"), ",")
	quota, _ := readNumber(first)
	name := cmp.Or(joinLines(h, prefix+"Bucket"), joinLines(h, prefix+"Resource"))
	if after, ok := readNumber(joinLines(h, prefix+"Reset-After")); ok {
		return []Limit{newLimit(name, quota, left, after)}
	}
	reset, ok := readNumber(joinLines(h, prefix+"Reset"))
	if !ok {
		return nil
	}
	if reset >= epochMillis {
		reset /= 1000
	}
	if reset >= epoch {
		reset = max(reset-float64(server.UnixMilli())/1000, 0)
	}
	return []Limit{newLimit(name, quota, left, reset)}
}
