package matrix

import (
	"slices"
	"testing"

	"github.com/weir-proxy/weir/test/figures"
)

// documentation is the folder of the page with the tables of Envoys.
const documentation = repository + "/docs"

// A table is a table of the page that a command writes, with a row for each Envoy that it runs.
type table struct {
	command string
	rows    []string
}

// tables returns the tables of `make matrix`, of `make test-arm64` and of `make test-native`.
func tables(t *testing.T) []table {
	versions := pinned(t)
	newest := versions[len(versions)-1]
	native := slices.DeleteFunc(slices.Clone(versions), isBeforeNative)
	emulated := []string{newest + " for arm64"}
	return []table{{"make matrix", versions}, {"make test-arm64", emulated}, {"make test-native", native}}
}

// page returns the page with the table.
func (b table) page() figures.Page {
	head := []string{"Envoy"}
	for _, c := range checks {
		head = append(head, c.name)
	}
	rows := figures.Table{head}
	for _, row := range b.rows {
		rows = append(rows, append([]string{row}, slices.Repeat([]string{"yes"}, len(checks))...))
	}
	return figures.Page{Name: "run/compatibility.md", Sections: []figures.Section{{
		Begin: "<!-- written by " + b.command + " -->\n", End: "<!-- end -->\n", Text: rows.Markdown() + "\n",
	}}}
}

// A table that names a version or a check which is not run would be a claim.
func TestThePageNamesTheEnvoysThatAreRun(t *testing.T) {
	for _, b := range tables(t) {
		if err := b.page().Check(documentation); err != nil {
			t.Errorf("%v: run `%s`", err, b.command)
		}
	}
}

func writeTable(t *testing.T, b table) {
	t.Helper()
	if err := b.page().Write(documentation); err != nil {
		t.Fatal(err)
	}
}
