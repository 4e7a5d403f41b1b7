// Command measure prints how the code reads, in numbers: the sizes of functions and files, how
// wide and dense lines are, how much is commented and how, and how many of the files of a package
// are tied to each other. It is for comparison, before and after a change or with another project:
//
//	go run ./tools/measure            the module in the current folder
//	go run ./tools/measure DIR...     other folders
//
// Tests, packages for tests and generated files do not count.
package main

import (
	"flag"
	"fmt"
	"io"
	"os"
	"text/tabwriter"
)

func main() {
	flag.Usage = func() {
		fmt.Fprintln(flag.CommandLine.Output(), "usage: measure [DIR...]   prints how the code in the folders reads, "+
			"in numbers; without a folder, the module here")
	}
	flag.Parse()
	roots := flag.Args()
	if len(roots) == 0 {
		roots = []string{"."}
	}
	for _, root := range roots {
		t, err := readTree(root)
		if err != nil {
			fmt.Fprintln(os.Stderr, "measure:", err)
			os.Exit(1)
		}
		fmt.Println(root)
		t.printReport(os.Stdout)
	}
}

func (t *tree) printReport(to io.Writer) {
	w := tabwriter.NewWriter(to, 0, 4, 2, ' ', 0)
	defer w.Flush()
	row := func(what, format string, values ...any) {
		fmt.Fprintf(w, "  %s\t%s\n", what, fmt.Sprintf(format, values...))
	}
	row("packages, files, functions", "%d, %d, %d", len(t.packages), len(t.fileLines), len(t.functions))
	row("lines of code", "%d", t.code)
	row("lines of a function: median, p95, most", "%d, %d, %d",
		valueAt(t.functions, 0.5), valueAt(t.functions, 0.95), valueAt(t.functions, 1))
	row("lines of a file: p95, most", "%d, %d", valueAt(t.fileLines, 0.95), valueAt(t.fileLines, 1))
	row("lines of comment to a line of code", "%.2f", ratioOf(t.comments, t.code))
	row("lines over 100 columns, over 120, longest", "%.1f %%, %.1f %%, %d",
		100*ratioOf(t.over100, t.lines), 100*ratioOf(t.over120, t.lines), t.longest)
	row("tokens in a line of code", "%.1f", ratioOf(t.tokens, t.code))
	row("ifs whose init changes a variable", "%.2f %% of lines", 100*ratioOf(t.mutatingIfs, t.code))
	row("exported names with a comment", "%.0f %%", 100*ratioOf(t.documented, t.exported))
	row("sentences in comments", "%d", t.sentences)
	for i, h := range habitsCounted {
		row("  habit "+h.Name, "%.1f in 1000", 1000*ratioOf(t.habits[i], t.sentences))
	}
	fmt.Fprintf(w, "\n  package\tties of files\tof possible\tin circles\n")
	for _, p := range t.packages {
		if n := len(p.files); n >= 5 {
			ties, back := p.countTies()
			fmt.Fprintf(w, "  %s\t%d\t%d\t%d\n", p.dir, ties, n*(n-1)/2, back)
		}
	}
}
