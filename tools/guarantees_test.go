package tools_test

import (
	"strings"
	"testing"
)

// What each failure costs is said for every failure, also where it costs nothing.
func TestTheTableOfFailuresHasNoEmptyCell(t *testing.T) {
	_, table, found := strings.Cut(read(t, "docs/guarantees.md"), "## What each failure does\n\n")
	if !found {
		t.Fatal("docs/guarantees.md has no section on what each failure does")
	}
	table, _, _ = strings.Cut(table, "\n\n")
	rows := strings.Split(table, "\n")
	if len(rows) < 15 {
		t.Errorf("the table has %d rows", len(rows))
	}
	for _, row := range rows {
		cells := strings.Split(strings.Trim(row, "|"), "|")
		if len(cells) != 4 {
			t.Errorf("%d cells: %s", len(cells), row)
		}
		for _, cell := range cells {
			if strings.TrimSpace(cell) == "" {
				t.Errorf("an empty cell: %s", row)
			}
		}
	}
}
