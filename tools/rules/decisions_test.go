package rules_test

import (
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// RATIONALE.md holds numbered decisions below their themes, and a list of all of them at the top.

const (
	// maxDecisions bounds the decisions of RATIONALE.md, so that a newcomer can look through them.
	maxDecisions = 125
	// maxLineWords bounds the words of a decision's line in the list.
	maxLineWords = 25
)

// decisionParts are the bold words that begin the parts of a decision, in their order.
var decisionParts = []string{"Context", "Decision", "Rejected", "Measured"}

var (
	// numbered is the heading of a decision without its marks: number and title.
	numbered = regexp.MustCompile(`^([0-9]+)[.] (.+)$`)
	// listRow is a decision in the list: number, anchor, title, line, state.
	listRow      = regexp.MustCompile(`(?m)^[|] \[([0-9]+)\]\(#([^)]+)\) [|] ([^|]+) [|] ([^|]+) [|] ([^|]+) [|]$`)
	listLink     = regexp.MustCompile(`\]\(#([^)]+)\)`)
	supersededBy = regexp.MustCompile(`^superseded by ([0-9]+)$`)
	boldLead     = regexp.MustCompile(`(?m)^\*\*([^*]+)[.]\*\*`)
)

// A decision is a numbered part of RATIONALE.md.
type decision struct {
	number      int
	title, body string
}

// readDecisions returns the decisions of the page in its order.
func readDecisions(page string) (all []decision) {
	for _, part := range strings.Split(page, "\n### ")[1:] {
		head, body, _ := strings.Cut(part, "\n")
		body, _, _ = strings.Cut(body, "\n## ")
		if m := numbered.FindStringSubmatch(head); m != nil {
			n, _ := strconv.Atoi(m[1])
			all = append(all, decision{n, m[2], body})
		}
	}
	return all
}

// The list of RATIONALE.md links to each heading of the page, in order.
func TestTheListOfDecisionsHasAllHeadings(t *testing.T) {
	page := withoutCode(read(t, "RATIONALE.md"))
	list, _, _ := strings.Cut(page, "\n## ")
	var want, got []string
	for _, m := range heading.FindAllStringSubmatch(page, -1) {
		want = append(want, anchor(m[2]))
	}
	for _, m := range listLink.FindAllStringSubmatch(list, -1) {
		got = append(got, m[1])
	}
	for i := 0; i < len(want) || i < len(got); i++ {
		if i >= len(want) || i >= len(got) || want[i] != got[i] {
			t.Fatalf("RATIONALE.md: entry %d of the list and heading %d differ: %q, %q",
				i+1, i+1, slices.Concat(got, []string{""})[min(i, len(got))],
				slices.Concat(want, []string{""})[min(i, len(want))])
		}
	}
}

// The numbers of decisions count from 1 in the order of the page. Each row of the list has the
// decision's title, a short line and a state.
func TestDecisionsAreNumberedAndListed(t *testing.T) {
	page := withoutCode(read(t, "RATIONALE.md"))
	all, rows := readDecisions(page), listRow.FindAllStringSubmatch(page, -1)
	if len(all) == 0 || len(all) > maxDecisions {
		t.Errorf("RATIONALE.md has %d decisions, want 1 to %d: join related decisions", len(all), maxDecisions)
	}
	if len(rows) != len(all) {
		t.Fatalf("the list has %d rows for %d decisions", len(rows), len(all))
	}
	for i, d := range all {
		if d.number != i+1 {
			t.Errorf("decision %q has the number %d, want %d", d.title, d.number, i+1)
		}
		row := rows[i]
		if row[1] != strconv.Itoa(d.number) || row[3] != d.title {
			t.Errorf("row %d of the list is %q, %q; the heading is %d, %q", i+1, row[1], row[3], d.number, d.title)
		}
		if n := len(strings.Fields(row[4])); n > maxLineWords {
			t.Errorf("the line of decision %d has %d words, more than %d", d.number, n, maxLineWords)
		}
		if row[5] == "in force" {
			continue
		}
		m := supersededBy.FindStringSubmatch(row[5])
		if m == nil {
			t.Errorf("decision %d has the state %q, want \"in force\" or \"superseded by N\"", d.number, row[5])
			continue
		}
		if by, _ := strconv.Atoi(m[1]); by < 1 || by > len(all) || by == d.number || rows[by-1][5] != "in force" {
			t.Errorf("decision %d is superseded by %s, which is no decision in force", d.number, m[1])
		}
	}
}

// A decision in force has a context and a decision; each part is there once and in its place. A
// superseded one is a single paragraph.
func TestDecisionsHaveTheirParts(t *testing.T) {
	page := withoutCode(read(t, "RATIONALE.md"))
	rows := listRow.FindAllStringSubmatch(page, -1)
	for i, d := range readDecisions(page) {
		if strings.HasPrefix(rows[i][5], "superseded") {
			if strings.Contains(strings.TrimSpace(d.body), "\n\n") {
				t.Errorf("decision %d is superseded: one paragraph says why", d.number)
			}
			continue
		}
		at, found := -1, map[string]bool{}
		for _, m := range boldLead.FindAllStringSubmatch(d.body, -1) {
			next := slices.Index(decisionParts, m[1])
			if next <= at {
				t.Errorf("decision %d: %q is no part or out of order; the parts are %v", d.number, m[1], decisionParts)
			}
			at, found[m[1]] = max(at, next), true
		}
		if !found["Context"] || !found["Decision"] {
			t.Errorf("decision %d lacks its context or its decision", d.number)
		}
	}
}
