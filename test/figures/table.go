package figures

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"unicode/utf8"
)

// Spread is a figure over all rounds.
type Spread struct {
	Median float64 `json:"median"`
	Min    float64 `json:"min"`
	Max    float64 `json:"max"`
}

// Over makes a spread of one figure of each round. At least one round must have been measured.
func Over[T any](rounds []T, figure func(T) float64) Spread {
	var all []float64
	for _, r := range rounds {
		all = append(all, figure(r))
	}
	slices.Sort(all)
	middle := len(all) / 2
	median := all[middle]
	if len(all)%2 == 0 {
		median = (all[middle-1] + all[middle]) / 2
	}
	return Spread{median, all[0], all[len(all)-1]}
}

// Text returns the median and, where the rounds differ, the least and the most, each in a format
// like %.1f.
func (s Spread) Text(format string) string {
	median := fmt.Sprintf(format, s.Median)
	if s.Min == s.Max {
		return median
	}
	return median + fmt.Sprintf(" ("+format+" to "+format+")", s.Min, s.Max)
}

// Table is rows of cells, the titles first.
type Table [][]string

// Print writes the table for people.
func (t Table) Print(w io.Writer) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, row := range t {
		fmt.Fprintln(table, strings.Join(row, "\t"))
	}
	return table.Flush()
}

// Markdown returns the table for a page, after an empty line.
func (t Table) Markdown() string {
	var b strings.Builder
	b.WriteString("\n")
	for i, row := range t {
		fmt.Fprintf(&b, "| %s |\n", strings.Join(row, " | "))
		if i == 0 {
			fmt.Fprintf(&b, "| ---%s |\n", strings.Repeat(" | ---", len(row)-1))
		}
	}
	return b.String()
}

// Insert puts text between the lines begin and end of a page, which are whole lines. It breaks
// lines at 100 columns, as on all pages.
func Insert(page, begin, end, text string) (string, error) {
	before, rest, ok1 := strings.Cut(page, begin)
	_, after, ok2 := strings.Cut(rest, end)
	if !ok1 || !ok2 {
		return "", fmt.Errorf("the page lacks the line %q or %q after it", strings.TrimSpace(begin),
			strings.TrimSpace(end))
	}
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		if line != "" && !strings.ContainsAny(line[:1], "|!<#`") {
			lines[i] = wrap(line)
		}
	}
	return before + begin + strings.Join(lines, "\n") + end + after, nil
}

// wrap breaks a sentence between words.
func wrap(text string) string {
	const columns = 100
	lines := []string{""}
	for word := range strings.FieldsSeq(text) {
		last := &lines[len(lines)-1]
		switch {
		case *last == "":
			*last = word
		case utf8.RuneCountInString(*last)+1+utf8.RuneCountInString(word) > columns:
			lines = append(lines, word)
		default:
			*last += " " + word
		}
	}
	return strings.Join(lines, "\n")
}
