package rules_test

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// Each room of the tree has a budget of each habit that slows a reader down: how often it occurs in
// the room may only fall. The file has one line a room, sort of text and habit. After a change that
// removes habits,
//
//	go test ./tools/rules -run TestRoomsStayWithinTheirBudgets -lower
//
// writes the lower counts into it; -v prints how frequent each habit is.

const budgetsFile = "tools/rules/budgets.txt"

var lower = flag.Bool("lower", false, "write counts that have fallen into "+budgetsFile)

// freely is the number of occurrences in 1000 sentences, or in 1000 functions, that a room may have
// whatever its budget is. The projects that these rules compare Weir with have about this number.
var freely = map[string]int{bareName: 100, startsWithIs: 20, longSilent: 0, bannedName: 0}

const freelyElsewhere = 3

// checkBudgets returns the counts above their budgets.
//
// Packages move between rooms and pages are split. So a room that is not in the file may use up the
// budgets of its part that no other room uses, and a room in the file may use the budgets of rooms
// that are gone.
func checkBudgets(counts, budgets map[cell]int, sizes map[cell]int) (problems []string) {
	type share struct{ part, column string }
	gone, unused, rooms := map[share]int{}, map[share]int{}, map[string]bool{}
	for c := range counts {
		rooms[c.room] = true
	}
	known := map[string]bool{}
	for c, allowed := range budgets {
		known[c.room] = true
		if s := (share{partOf(c.room), c.column()}); !rooms[c.room] {
			gone[s] += allowed
		} else {
			unused[s] += max(0, allowed-counts[c])
		}
	}
	for _, c := range slices.SortedFunc(maps.Keys(counts), cell.compare) {
		allowed := max(budgets[c], sizes[c]*freelyOf(c.habit)/1000)
		over := counts[c] - allowed
		if over <= 0 {
			continue
		}
		s := share{partOf(c.room), c.column()}
		fromGone := min(over, gone[s])
		gone[s] -= fromGone
		over -= fromGone
		if !known[c.room] {
			fromUnused := min(over, unused[s])
			unused[s] -= fromUnused
			over -= fromUnused
		}
		if over > 0 {
			problems = append(problems, fmt.Sprintf("%s: %s %s: %d, at most %d; write %s",
				c.room, c.sort, c.habit, counts[c], counts[c]-over, advice(c.habit)))
		}
	}
	return problems
}

func freelyOf(habit string) int {
	if n, ok := freely[habit]; ok {
		return n
	}
	return freelyElsewhere
}

// lowered returns the budgets that hold the counts and no more. Text that moved between two rooms
// moves its budget too, as long as the sum of the habit in the part has not risen. Otherwise it
// returns the problems.
func lowered(counts, budgets map[cell]int, sizes map[cell]int) (next map[cell]int, problems []string) {
	type share struct{ part, column string }
	risen := map[share]int{}
	for c, n := range counts {
		risen[share{partOf(c.room), c.column()}] += n
	}
	for c, n := range budgets {
		risen[share{partOf(c.room), c.column()}] -= n
	}
	inRisen := maps.Clone(counts)
	maps.DeleteFunc(inRisen, func(c cell, _ int) bool { return risen[share{partOf(c.room), c.column()}] <= 0 })
	if problems = checkBudgets(inRisen, budgets, sizes); len(problems) > 0 {
		return budgets, problems
	}
	next = maps.Clone(counts)
	maps.DeleteFunc(next, func(_ cell, n int) bool { return n == 0 })
	return next, nil
}

// readBudgets reads the lines of the file: room, sort, habit, count.
func readBudgets(t *testing.T, text string) map[cell]int {
	t.Helper()
	budgets := map[cell]int{}
	for i, line := range strings.Split(text, "\n") {
		fields := strings.Fields(line)
		if len(fields) == 0 || fields[0] == "#" {
			continue
		}
		if len(fields) != 4 {
			t.Fatalf("%s:%d: %d fields, want room, sort, habit, count", budgetsFile, i+1, len(fields))
		}
		n, err := strconv.Atoi(fields[3])
		if err != nil {
			t.Fatalf("%s:%d: %v", budgetsFile, i+1, err)
		}
		budgets[cell{fields[0], fields[1], fields[2]}] = n
	}
	return budgets
}

// writeBudgets returns the text of the file.
func writeBudgets(budgets map[cell]int) string {
	var b strings.Builder
	b.WriteString("# How often each room has each habit of writing at most. `go test ./tools/rules -run " +
		"TestRoomsStayWithinTheirBudgets -lower` lowers it.\n# room, sort of text, habit, count\n")
	for _, c := range slices.SortedFunc(maps.Keys(budgets), cell.compare) {
		if budgets[c] > 0 {
			fmt.Fprintf(&b, "%s %s %s %d\n", c.room, c.sort, c.habit, budgets[c])
		}
	}
	return b.String()
}

func TestRoomsStayWithinTheirBudgets(t *testing.T) {
	counts, sizes := countRooms(t)
	budgets := readBudgets(t, read(t, budgetsFile))
	if *lower {
		var problems []string
		if budgets, problems = lowered(counts, budgets, sizes); problems != nil {
			t.Fatal(strings.Join(problems, "\n"))
		}
		if err := os.WriteFile(filepath.Join(root, budgetsFile), []byte(writeBudgets(budgets)), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, problem := range checkBudgets(counts, budgets, sizes) {
		t.Error(problem)
	}
	if testing.Verbose() {
		t.Log("\n" + report(counts, sizes))
	}
}

func TestBudgetsOnlyFallAndSurviveMoves(t *testing.T) {
	in := func(room string) cell { return cell{room, "code", "what"} }
	budgets := map[cell]int{in("shared"): 5, in("filter/leasing"): 4, in("filter/limiter"): 3}
	for _, c := range []struct {
		name   string
		counts map[cell]int
		fails  string
	}{
		{"as before", map[cell]int{in("shared"): 5, in("filter/leasing"): 4, in("filter/limiter"): 3}, ""},
		{"fewer", map[cell]int{in("shared"): 1, in("filter/leasing"): 0, in("filter/limiter"): 3}, ""},
		{"more", map[cell]int{in("shared"): 6, in("filter/leasing"): 4, in("filter/limiter"): 3}, "shared"},
		{"moved into a new room", map[cell]int{in("shared"): 5, in("filter/remote"): 7}, ""},
		{"moved into a room that was there", map[cell]int{in("shared"): 5, in("filter/limiter"): 7}, ""},
		{"split", map[cell]int{in("shared"): 5, in("filter/leasing"): 1, in("filter/queue"): 3,
			in("filter/limiter"): 3}, ""},
		{"moved into another part", map[cell]int{in("shared"): 7, in("filter/leasing"): 4}, "shared"},
		{"more in a new room", map[cell]int{in("shared"): 5, in("filter/remote"): 8}, "filter/remote"},
	} {
		problems := strings.Join(checkBudgets(c.counts, budgets, map[cell]int{}), "\n")
		if c.fails == "" && problems != "" || !strings.Contains(problems, c.fails) {
			t.Errorf("%s: %q, want %q", c.name, problems, c.fails)
		}
	}
	moved := map[cell]int{in("shared"): 5, in("filter/leasing"): 1, in("filter/limiter"): 5}
	got, problems := lowered(moved, budgets, nil)
	if problems != nil || !maps.Equal(got, moved) {
		t.Errorf("lowered to %v, %q, want %v", got, problems, moved)
	}
	got, problems = lowered(map[cell]int{in("shared"): 6}, budgets, nil)
	if problems == nil || got[in("shared")] != 5 {
		t.Errorf("raised to %v, %q", got, problems)
	}
	if again := readBudgets(t, writeBudgets(got)); !maps.Equal(again, got) {
		t.Errorf("%v is read as %v", got, again)
	}
}
