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

// Limit is what an answer says of one policy.
type Limit struct {
	// Name is the policy's, or what else names the bucket; empty if the dialect names none.
	Name string
	// Quota is what an idle caller may send at once; 0 if the answer does not name it. Left is what
	// is left of it.
	Quota, Left int64
	// Reset is the time until the bucket is full again; on a refusal, until one request passes.
	Reset time.Duration
}

// Limits is what an answer says of limits. The zero value says nothing.
type Limits struct {
	// Policies are of the first dialect that the answer has: RateLimit as of draft 11,
	// RateLimit-Remaining as of draft 03, X-RateLimit-Remaining, X-Rate-Limit-Remaining.
	Policies []Limit
	// RetryAfter is the wait that Retry-After names, if HasRetryAfter.
	RetryAfter    time.Duration
	HasRetryAfter bool
}

// tooDear reports whether each policy has something left: a refusal then means that the request
// costs more than that, and says nothing of others.
func (l Limits) tooDear() bool {
	empty := func(p Limit) bool { return p.Left == 0 }
	return len(l.Policies) > 0 && !slices.ContainsFunc(l.Policies, empty)
}

const (
	// maxField is the length of the longest field that is read, maxPolicies how many of its items.
	maxField    = 4096
	maxPolicies = 16
	// forever is the longest time that is believed: some thirty years.
	forever = 1e9 * time.Second
	// epoch and epochMillis are where numbers are no seconds from now, but Unix times in seconds
	// and in milliseconds.
	epoch, epochMillis = 1e9, 1e12
)

// item is one item of a structured field: a name and its parameters.
var (
	item = regexp.MustCompile(`^\s*(?:"((?:[^"\\]|\\.)*)"|([A-Za-z*][\w:/.*-]*))` +
		`((?:\s*;\s*[a-z*][\w.*-]*(?:=(?:"(?:[^"\\]|\\.)*"|[^;,"\s]*))?)*)\s*(?:,|$)`)
	param  = regexp.MustCompile(`;\s*([a-z*][\w.*-]*)=("(?:[^"\\]|\\.)*"|[^;,"\s]*)`)
	number = regexp.MustCompile(`^\d{1,15}(?:\.\d{1,6})?$`)
)

// Read reads what an answer says. Now is when the answer came. What is malformed, negative or too
// long counts as absent.
func Read(h http.Header, now time.Time) (l Limits) {
	server := now
	if date, err := http.ParseTime(h.Get("Date")); err == nil {
		server = date
	}
	l.RetryAfter, l.HasRetryAfter = readRetryAfter(field(h, "Retry-After"), server)
	l.Policies = readDraft11(h)
	for _, prefix := range []string{"RateLimit-", "X-RateLimit-", "X-Rate-Limit-"} {
		if len(l.Policies) == 0 {
			l.Policies = readTrio(h, prefix, server)
		}
	}
	return l
}

// field is all lines of a field as one value; empty if it is too long to be meant.
func field(h http.Header, name string) string {
	value := strings.TrimSpace(strings.Join(h.Values(name), ", "))
	if len(value) > maxField {
		return ""
	}
	return value
}

// readNumber reads digits with an optional fraction, and nothing else: no sign, no exponent.
func readNumber(text string) (float64, bool) {
	text = strings.TrimSpace(text)
	if !number.MatchString(text) {
		return 0, false
	}
	n, err := strconv.ParseFloat(text, 64)
	return n, err == nil
}

func seconds(n float64) time.Duration {
	return time.Duration(min(n, forever.Seconds()) * float64(time.Second))
}

// readRetryAfter reads seconds, the largest of several, or a date.
func readRetryAfter(value string, server time.Time) (wait time.Duration, ok bool) {
	if date, err := http.ParseTime(value); err == nil {
		return min(max(date.Sub(server), 0), forever), true
	}
	for _, part := range strings.Split(value, ",") {
		n, valid := readNumber(part)
		if !valid {
			return 0, false
		}
		wait = max(wait, seconds(n))
	}
	return wait, true
}

// readDraft11 reads RateLimit, with the quotas and windows of RateLimit-Policy.
func readDraft11(h http.Header) (all []Limit) {
	policies := map[string]map[string]float64{}
	for _, it := range readItems(field(h, "RateLimit-Policy")) {
		if policies[it.name] == nil {
			policies[it.name] = it.params
		}
	}
	for _, it := range readItems(field(h, "RateLimit")) {
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
	return Limit{Name: name, Quota: int64(quota), Left: int64(left), Reset: seconds(reset)}
}

type fieldItem struct {
	name   string
	params map[string]float64
}

// readItems reads a list of items and the numbers among their parameters. A list that is malformed
// anywhere has no items, as structured fields want it.
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

// readTrio reads Limit, Remaining and Reset of the older dialects. Envoy's Limit is a list that
// begins with the limit shown. Reset is a number of seconds, or a Unix time.
func readTrio(h http.Header, prefix string, server time.Time) []Limit {
	left, ok := readNumber(field(h, prefix+"Remaining"))
	if !ok {
		return nil
	}
	first, _, _ := strings.Cut(field(h, prefix+"Limit"), ",")
	quota, _ := readNumber(first)
	name := cmp.Or(field(h, prefix+"Bucket"), field(h, prefix+"Resource"))
	if after, ok := readNumber(field(h, prefix+"Reset-After")); ok {
		return []Limit{newLimit(name, quota, left, after)}
	}
	reset, ok := readNumber(field(h, prefix+"Reset"))
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
