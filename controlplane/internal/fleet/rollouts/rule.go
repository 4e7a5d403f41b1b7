// Package rollouts compares the decisions of a rollout's nodes with the decisions of the other
// nodes, policy by policy, and takes a version back once a rule finds that it does harm.
package rollouts

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/weir-proxy/weir/controlplane/internal/observe/series"
)

// Figure is a share of a policy's decisions.
type Figure string

// The figures: requests that were refused, requests that waited for tokens, and requests that were
// decided without their bucket.
const (
	Refused Figure = "refused"
	Waits   Figure = "waits"
	Errors  Figure = "errors"
)

// Bounds of rules; usualLeast is the number of decided requests that each side needs by default.
const (
	maxText    = 200
	maxRules   = 6
	maxFactor  = 1000
	maxLeast   = 1_000_000_000
	usualLeast = 100
)

// Rule defines when a rollout is stopped: a figure of its nodes is above Bound or, with Factor,
// above Bound times the figure of the other nodes.
type Rule struct {
	Figure Figure
	// Factor is true if Bound is a multiple of the other nodes' share. Otherwise Bound is a share,
	// 0 to 1.
	Factor bool
	Bound  float64
	// Least is the number of requests that each compared side must have decided.
	Least int64
}

// String returns the rule in the form that Parse reads.
func (r Rule) String() string {
	text := fmt.Sprintf("%s > %s", r.Figure, r.boundText())
	if r.Least != usualLeast {
		text += " over " + strconv.FormatInt(r.Least, 10)
	}
	return text
}

func (r Rule) boundText() string {
	if r.Factor {
		return strconv.FormatFloat(r.Bound, 'f', -1, 64) + "x"
	}
	return strconv.FormatFloat(math.Round(r.Bound*1e8)/1e6, 'f', -1, 64) + "%"
}

// Parse reads rules separated by "or". Its errors are sentences with advice.
func Parse(text string) (rules []Rule, err error) {
	if n := utf8.RuneCountInString(text); n > maxText {
		return nil, fmt.Errorf("it has %d characters: write at most %d", n, maxText)
	}
	words := strings.Fields(strings.NewReplacer(">", " > ", ",", " , ", "<", " < ", "=", " = ").Replace(text))
	if len(words) == 0 {
		return nil, fmt.Errorf("it is empty: write when to stop, like 'refused > 2x'")
	}
	// Read rule by rule.
	for len(words) > 0 {
		var r Rule
		if r, words, err = parseOne(words); err != nil {
			return nil, err
		}
		if rules = append(rules, r); len(rules) > maxRules {
			return nil, fmt.Errorf("it has more than %d rules", maxRules)
		}
		if len(words) == 0 {
			break
		}
		if word := words[0]; word != "or" && word != "," {
			return nil, fmt.Errorf("%q cannot follow %q: put 'or' between two rules, or 'over 500' for at least "+
				"500 requests", word, r)
		}
		if words = words[1:]; len(words) == 0 {
			return nil, fmt.Errorf("it ends with %q: a rule has to follow", "or")
		}
	}
	return rules, nil
}

// parseOne reads the first rule in words.
func parseOne(words []string) (r Rule, rest []string, err error) {
	r.Least = usualLeast
	switch r.Figure = Figure(words[0]); {
	case r.Figure != Refused && r.Figure != Waits && r.Figure != Errors:
		return r, nil, fmt.Errorf("%q is not known: a rule begins with refused, waits or errors, like 'refused > 2x'",
			words[0])
	case len(words) < 2 || words[1] != ">":
		return r, nil, fmt.Errorf("after %q comes '>', like '%[1]s > 2x': a rollout stops when the share is above "+
			"something", words[0])
	case len(words) < 3:
		return r, nil, fmt.Errorf("after '>' comes a multiple of the other nodes' share, like 2x, or a share, like 5%%")
	}
	if err := r.parseBound(words[2]); err != nil {
		return r, nil, err
	}
	rest = words[3:]
	if len(rest) == 0 || rest[0] != "over" {
		return r, rest, nil
	}
	if len(rest) > 1 {
		r.Least, err = strconv.ParseInt(rest[1], 10, 64)
	}
	if len(rest) < 2 || err != nil || r.Least < 1 || r.Least > maxLeast {
		return r, nil, fmt.Errorf("after 'over' comes a number of requests from 1 to %d, like 'over 500'", maxLeast)
	}
	if rest = rest[2:]; len(rest) > 0 && rest[0] == "requests" {
		rest = rest[1:]
	}
	return r, rest, nil
}

func (r *Rule) parseBound(text string) (err error) {
	number, unit := text[:len(text)-1], text[len(text)-1]
	r.Factor = unit == 'x'
	if strings.Trim(text, "<=>") == "" {
		return fmt.Errorf("after '>' comes a multiple of the other nodes' share, like 2x, or a share, like 5%%; not %q",
			text)
	}
	if unit != 'x' && unit != '%' {
		return fmt.Errorf("%q lacks its unit: 2x is twice the share of the other nodes, 2%% is a share", text)
	}
	r.Bound, err = strconv.ParseFloat(number, 64)
	switch {
	case err != nil || strings.ContainsAny(number, "eExXpPnNiI_+"):
		return fmt.Errorf("%q is not a number with its unit, like 2x or 5%%", text)
	case r.Factor && (r.Bound < 1 || r.Bound > maxFactor):
		return fmt.Errorf("%s must be from 1x to %dx: below that a rollout would stop though its nodes are no worse",
			text, maxFactor)
	case !r.Factor && (r.Bound < 0 || r.Bound >= 100):
		return fmt.Errorf("%s must be a share from 0%% up, below 100%%", text)
	}
	if !r.Factor {
		r.Bound /= 100
	}
	return nil
}

// countOf returns the number of a side's requests that the figure counts.
func (f Figure) countOf(side series.Side) int64 {
	switch f {
	case Waits:
		return side.Waited
	case Errors:
		return side.Unsure
	}
	return side.Refused
}

// Verdict is the result of a rule for two sides.
type Verdict int

// Few: too few requests were decided. Kept: the rule stops nothing. Broken: the rule stops the
// rollout.
const (
	Few Verdict = iota
	Kept
	Broken
)

// Judge compares two sides. A rule is broken if the difference is not by chance, except in e^-doubt
// of all cases: the lowest possible share of the nodes is above the bound, with the highest
// possible share of the other nodes.
func (r Rule) Judge(its, others series.Side, doubt float64) Verdict {
	if its.Decided < r.Least || r.Factor && others.Decided < r.Least {
		return Few
	}
	bound, k, n := r.Bound, r.Figure.countOf(its), its.Decided
	if r.Factor {
		theirs, of := r.Figure.countOf(others), others.Decided
		if its.Share(k) <= bound*others.Share(theirs) {
			return Kept // This is the usual case; the intervals below take longer.
		}
		bound *= 1 - leastShare(of-theirs, of, doubt)
	}
	if leastShare(k, n, doubt) > bound {
		return Broken
	}
	return Kept
}

// wrong is the share of all rollouts that may be stopped by chance, over their whole time.
const wrong = 0.001

// doubtOf returns the doubt for Judge if this many comparisons are made in each second of a
// rollout. Then all comparisons together are wrong in fewer cases than wrong, because the sum over
// all n of 1/n(n+1) is 1, and each comparison estimates two shares.
func doubtOf(comparisons int, age time.Duration) float64 {
	n := max(math.Floor(age.Seconds()), 1)
	return math.Log(2 * float64(comparisons) * n * (n + 1) / wrong)
}

// leastShare returns the lowest share from which n requests with k hits may be a sample. By
// Chernoff's bound, a lower share gives that many hits in fewer than e^-doubt of all cases, for any
// n.
func leastShare(k, n int64, doubt float64) float64 {
	if k <= 0 {
		return 0
	}
	total := float64(n)
	p := min(float64(k)/total, 1)
	low, high := 0.0, p
	for range 100 {
		q := (low + high) / 2
		far := p * math.Log(p/q)
		if p < 1 {
			far += (1 - p) * math.Log((1-p)/(1-q))
		}
		if total*far > doubt {
			low = q
		} else {
			high = q
		}
	}
	return high
}
