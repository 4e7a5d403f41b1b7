package rules_test

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// A house is a folder whose rooms lie on floors, from the ground up. A room is a folder in it, with
// all packages below. It imports rooms of lower floors only.
type house struct {
	folder string
	floors [][]string
}

// docs/internals/rooms.md draws the same floors.
var houses = []house{
	{"controlplane/internal", [][]string{
		{"ground"}, {"access"}, {"rules"}, {"observe"}, {"fleet", "grant", "offline"}, {"store", "serve"},
		{"app", "demo"}, {"cli"}}},
	{"filter/internal", [][]string{{"base"}, {"load"}, {"remote"}, {"decide"}, {"answer"}, {"envoy"}}},
	{"shared", [][]string{
		{"text", "keyhash", "quota"}, {"ipaddr", "inflight", "lease", "penalty", "adaptive", "dialect"}, {"spelling"},
		{"policy"}, {"wire"}, {"match"}, {"classify", "decide", "answer"}}},
}

// room returns the room of a path of the module, and "" if the path is in none.
func (h house) room(path string) string {
	rest, inside := strings.CutPrefix(path, h.folder+"/")
	if !inside {
		return ""
	}
	name, _, _ := strings.Cut(rest, "/")
	return name
}

// floor returns the floor of a room, counted from 0, or -1 if the house does not list the room.
func (h house) floor(room string) int {
	return slices.IndexFunc(h.floors, func(rooms []string) bool { return slices.Contains(rooms, room) })
}

// checkFloors returns the imports of a file that do not lead down, and counts the others as arrows.
func (h house) checkFloors(f file, arrows map[[2]string]int) (problems []string) {
	from := h.room(f.path)
	if from == "" || f.isTest() || f.isSupport() {
		return nil
	}
	if h.floor(from) < 0 {
		return []string{fmt.Sprintf("%s: %s lists no room %s", f.path, h.folder, from)}
	}
	for _, spec := range f.tree.Imports {
		imported, _ := strconv.Unquote(spec.Path.Value)
		to := h.room(strings.TrimPrefix(imported, module))
		switch {
		case to == "" || to == from:
		case h.floor(to) < 0 || h.floor(to) >= h.floor(from):
			problems = append(problems,
				f.problem(spec.Pos(), from+" must not import "+to+": imports lead to lower floors"))
		default:
			arrows[[2]string{from, to}]++
		}
	}
	return problems
}

// Imports of one room by another lead down. The list of rooms is whole, and names no room that is
// gone.
func TestImportsLeadDown(t *testing.T) {
	files := goFiles(t)
	for _, h := range houses {
		arrows, found := map[[2]string]int{}, map[string]bool{}
		for _, f := range files {
			found[h.room(f.path)] = true
			for _, problem := range h.checkFloors(f, arrows) {
				t.Error(problem)
			}
		}
		for _, rooms := range h.floors {
			for _, room := range rooms {
				if !found[room] {
					t.Errorf("%s has no room %s", h.folder, room)
				}
			}
		}
		t.Logf("%s: %d floors, %d arrows", h.folder, len(h.floors), len(arrows))
		for _, a := range slices.SortedFunc(maps.Keys(arrows), func(a, b [2]string) int {
			return cmp.Or(cmp.Compare(a[0], b[0]), cmp.Compare(a[1], b[1]))
		}) {
			t.Logf("  %s → %s, %d imports", a[0], a[1], arrows[a])
		}
	}
}

func TestArrowsThatDoNotLeadDownAreFound(t *testing.T) {
	for _, c := range []struct{ path, imported, want string }{
		{"controlplane/internal/rules/a/a.go", "controlplane/internal/ground/errs", ""},
		{"controlplane/internal/rules/a/a.go", "controlplane/internal/rules/b", ""},
		{"controlplane/internal/rules/a/a.go", "shared/policy", ""},
		{"controlplane/internal/rules/a/a_test.go", "controlplane/internal/app", ""},
		{"controlplane/internal/rules/a/a.go", "controlplane/internal/app", "rules must not import app"},
		{"controlplane/internal/serve/a/a.go", "controlplane/internal/store/b", "serve must not import store"},
		{"controlplane/internal/new/a.go", "shared/policy", "lists no room new"},
		{"filter/internal/load/a/a.go", "filter/internal/remote/b", "load must not import remote"},
		{"shared/quota/a.go", "shared/policy", "quota must not import policy"},
	} {
		f := parse(t, c.path, "package a\nimport _ \""+module+c.imported+"\"\n")
		var problems []string
		for _, h := range houses {
			problems = append(problems, h.checkFloors(f, map[[2]string]int{})...)
		}
		if got := strings.Join(problems, "\n"); c.want == "" && got != "" || !strings.Contains(got, c.want) {
			t.Errorf("%s imports %s: %q, want %q", c.path, c.imported, got, c.want)
		}
	}
}
