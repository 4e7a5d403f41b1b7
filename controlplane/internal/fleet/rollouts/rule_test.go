package rollouts_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/weir-proxy/weir/controlplane/internal/fleet/rollouts"
	"github.com/weir-proxy/weir/controlplane/internal/observe/series"
)

func TestRules(t *testing.T) {
	for text, want := range map[string]string{
		"refused > 2x":                             "[refused > 2x]",
		"refused>2x":                               "[refused > 2x]",
		"  errors  >  0.5%  ":                      "[errors > 0.5%]",
		"waits > 1.5x over 500":                    "[waits > 1.5x over 500]",
		"waits > 3x over 500 requests":             "[waits > 3x over 500]",
		"refused > 5% or errors > 1% over 20":      "[refused > 5% errors > 1% over 20]",
		"refused > 2x, errors > 0%":                "[refused > 2x errors > 0%]",
		"refused > 2x over 100 or refused > 33.3%": "[refused > 2x refused > 33.3%]",
	} {
		rules, err := rollouts.Parse(text)
		if got := fmt.Sprint(rules); err != nil || got != want {
			t.Errorf("%q: %s %v, want %s", text, got, err, want)
		}
		for _, r := range rules {
			again, err := rollouts.Parse(r.String())
			if err != nil || fmt.Sprint(again) != fmt.Sprintf("[%v]", r) {
				t.Errorf("%v is read as %v: %v", r, again, err)
			}
		}
	}
}

func TestRulesThatAreNone(t *testing.T) {
	for text, want := range map[string]string{
		"":                                     "it is empty: write when to stop, like 'refused > 2x'",
		"refussed > 2x":                        `"refussed" is not known: a rule begins with refused, waits or errors`,
		"> 2x":                                 `">" is not known`,
		"refused":                              `after "refused" comes '>', like 'refused > 2x'`,
		"refused < 2x":                         `after "refused" comes '>'`,
		"refused >= 2x":                        `after '>' comes a multiple of the other nodes' share, like 2x, or a share, like 5%; not "="`,
		"refused >> 2x":                        `after '>' comes a multiple of the other nodes' share, like 2x, or a share, like 5%; not ">"`,
		"refused >":                            "after '>' comes a multiple of the other nodes' share, like 2x",
		"refused > 2":                          `"2" lacks its unit: 2x is twice the share of the other nodes, 2%`,
		"refused > x":                          `"x" is not a number`,
		"refused > twox":                       `"twox" is not a number with its unit, like 2x or 5%`,
		"refused > 1e3x":                       `"1e3x" is not a number`,
		"refused > NaN%":                       `"NaN%" is not a number`,
		"refused > 0.5x":                       "0.5x must be from 1x to 1000x: below that a rollout would stop",
		"refused > 2000x":                      "2000x must be from 1x",
		"refused > 100%":                       "100% must be a share from 0% up, below 100%",
		"refused > -1%":                        "-1% must be a share",
		"refused > 2x over":                    "after 'over' comes a number of requests",
		"refused > 2x over many":               "after 'over' comes a number of requests from 1 to 1000000000",
		"refused > 2x over 0":                  "after 'over' comes a number",
		"refused > 2x errors > 1%":             `"errors" cannot follow "refused > 2x": put 'or' between two rules`,
		"refused > 2x and errors > 1%":         `"and" cannot follow`,
		"refused > 2x or":                      `it ends with "or": a rule has to follow`,
		strings.Repeat("refused > 2x or ", 20): "it has 320 characters: write at most 200",
		strings.Repeat("waits > 2x,", 7) + "a": "it has more than 6 rules",
	} {
		if _, err := rollouts.Parse(text); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%q: %v, want %s", text, err, want)
		}
	}
}

func FuzzRules(f *testing.F) {
	f.Add("refused > 2x over 3 or errors > 1%")
	f.Fuzz(func(t *testing.T, text string) {
		rules, err := rollouts.Parse(text)
		if err == nil && len(rules) == 0 {
			t.Error("no rule and no error")
		}
		for _, r := range rules {
			r.Judge(series.Side{Decided: 1000, Refused: 7}, series.Side{Decided: 10}, doubt)
		}
	})
}

// doubt is the doubt of two comparisons after a minute.
const doubt = 16.5

func judge(t *testing.T, rule string, its, others series.Side) rollouts.Verdict {
	t.Helper()
	rules, err := rollouts.Parse(rule)
	if err != nil {
		t.Fatal(err)
	}
	return rules[0].Judge(its, others, doubt)
}

func TestJudgements(t *testing.T) {
	side := func(refused, of int64) series.Side { return series.Side{Decided: of, Refused: refused} }
	const few, kept, broken = rollouts.Few, rollouts.Kept, rollouts.Broken
	for i, c := range []struct {
		rule        string
		its, others series.Side
		want        rollouts.Verdict
	}{
		{"refused > 2x", side(0, 0), side(0, 0), few},
		{"refused > 2x", side(99, 99), side(0, 10_000), few},
		{"refused > 2x", side(5000, 10_000), side(0, 99), few},
		{"refused > 2x", side(5000, 10_000), side(0, 0), few},
		{"refused > 20%", side(5000, 10_000), side(0, 0), broken}, // A share needs no comparison.
		{"refused > 2x", side(100, 100), side(0, 100), broken},
		{"refused > 2x", side(500, 1000), side(100, 1000), broken},
		{"refused > 2x", side(210, 1000), side(100, 1000), kept}, // 2.1 times, which chance explains.
		{"refused > 2x", side(21_000, 100_000), side(9000, 100_000), broken},
		{"refused > 2x", side(19_000, 100_000), side(10_000, 100_000), kept},
		{"refused > 2x", side(100, 100), side(60, 100), kept}, // Twice as much there cannot be.
		{"refused > 2x", side(3, 1000), side(0, 1000), kept},
		{"refused > 2x over 5000", side(400, 1000), side(100, 1000), few},
		{"refused > 5%", side(51, 1000), side(0, 0), kept},
		{"refused > 5%", side(120, 1000), side(0, 0), broken},
		{"refused > 0%", side(1, 1000), side(0, 0), broken},
		{"refused > 0%", side(0, 1000), side(0, 0), kept},
		{"errors > 1%", series.Side{Decided: 1000, Unsure: 50}, side(0, 0), broken},
		{"errors > 1%", series.Side{Decided: 1000, Refused: 50, Waited: 50}, side(0, 0), kept},
		{"waits > 2x", series.Side{Decided: 1000, Waited: 500}, series.Side{Decided: 1000, Waited: 10}, broken},
		{"waits > 2x", series.Side{Decided: 1000, Refused: 500}, series.Side{Decided: 1000, Waited: 10}, kept},
	} {
		if got := judge(t, c.rule, c.its, c.others); got != c.want {
			t.Errorf("%d: %s of %+v and %+v: %v, want %v", i, c.rule, c.its, c.others, got, c.want)
		}
	}
}
