package figures_test

import (
	"errors"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/weir-proxy/weir/test/figures"
)

func spread(median, least, most float64) figures.Spread {
	return figures.Spread{Median: median, Min: least, Max: most}
}

func TestSpread(t *testing.T) {
	for _, c := range []struct {
		of   []float64
		want figures.Spread
	}{{[]float64{3}, spread(3, 3, 3)}, {[]float64{9, 1, 2}, spread(2, 1, 9)}, {[]float64{4, 1, 3, 2},
		spread(2.5, 1, 4)}} {
		if got := figures.Over(c.of, func(v float64) float64 { return v }); got != c.want {
			t.Errorf("of %v: %v, want %v", c.of, got, c.want)
		}
	}
}

// A range is shown if there are several rounds.
func TestTextOfASpread(t *testing.T) {
	for want, s := range map[string]figures.Spread{
		"2.5 (1.0 to 4.0)": spread(2.5, 1, 4), "3.0": spread(3, 3, 3), "3.0 (3.0 to 3.1)": spread(3, 3, 3.1),
	} {
		if got := s.Text("%.1f"); got != want {
			t.Errorf("%v: %s, want %s", s, got, want)
		}
	}
}

func TestProcessorsOfAStatus(t *testing.T) {
	for list, want := range map[string]string{"0-1": "0 1", "2": "2", "0,2-4,9": "0 2 3 4 9"} {
		got, err := figures.Processors("Name:\tx\nCpus_allowed_list:\t" + list + "\nMems_allowed:\t1\n")
		if err != nil || strings.Join(got, " ") != want {
			t.Errorf("%s is read as %v, %v", list, got, err)
		}
	}
	for _, status := range []string{"", "Cpus_allowed_list:\tx\n"} {
		if _, err := figures.Processors(status); err == nil {
			t.Errorf("%q has processors", status)
		}
	}
}

// The processor time of a process grows with work, and is a part of the time of all processes.
func TestProcessorTime(t *testing.T) {
	before, err := figures.ProcessorTime(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	x := 0.0
	for ticks := before; ticks < before+50*time.Millisecond; {
		for i := range 1_000_000 {
			x += math.Sqrt(float64(i))
		}
		if ticks, err = figures.ProcessorTime(os.Getpid()); err != nil {
			t.Fatal(err)
		}
	}
	if all, err := figures.EverybodysTime(); err != nil || all < before {
		t.Errorf("all processes have used %v, %v; this process alone %v", all, err, before)
	}
	if _, err := figures.ProcessorTime(1<<22 + 1); err == nil { // Linux numbers no process so.
		t.Error("a process that is not there has used time", x)
	}
}

func TestAPageWithoutMarksIsRefused(t *testing.T) {
	const begin, end = "<!-- begin -->\n", "<!-- end -->\n"
	for _, page := range []string{"", begin, end, end + begin} {
		if _, err := figures.Insert(page, begin, end, "new"); err == nil {
			t.Errorf("figures were put into %q", page)
		}
	}
	page, err := figures.Insert("a\n"+begin+"old\n"+end+"b\n", begin, end, "new\n")
	if want := "a\n" + begin + "new\n" + end + "b\n"; err != nil || page != want {
		t.Errorf("%v: %q, want %q", err, page, want)
	}
}

func TestOnlySentencesAreBroken(t *testing.T) {
	words := strings.Repeat("word ", 21) // 104 columns without the last space.
	page, err := figures.Insert("[]", "[", "]", "| "+words+"|\n"+words+"\n")
	want := "[| " + words + "|\n" + strings.TrimSpace(words[:100]) + "\nword\n]"
	if err != nil || page != want {
		t.Errorf("%v: %q, want %q", err, page, want)
	}
}

func TestATableForThePage(t *testing.T) {
	got := figures.Table{{"a", "b"}, {"1", "2"}}.Markdown()
	if want := "\n| a | b |\n| --- | --- |\n| 1 | 2 |\n"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// A page that a run has written is as the run says, until it or a file beside it changes.
func TestAPageIsChecked(t *testing.T) {
	dir := t.TempDir()
	page := figures.Page{
		Name: "p.md", Files: map[string][]byte{"p.svg": []byte("drawn")},
		Sections: []figures.Section{{Begin: "<!-- a -->\n", End: "<!-- b -->\n", Text: figures.Report{
			"measured", figures.Table{{"a"}}, figures.Table{{"a"}, {"1"}},
		}.Markdown()}},
	}
	name := filepath.Join(dir, "p.md")
	if err := os.WriteFile(name, []byte("x\n<!-- a -->\n<!-- b -->\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if page.Check(dir) == nil {
		t.Error("a page without its figures is taken")
	}
	if err := errors.Join(page.Write(dir), page.Check(dir)); err != nil {
		t.Error(err)
	}
	got, err := os.ReadFile(name)
	if want := "x\n<!-- a -->\nmeasured\n\n| a |\n| --- |\n| 1 |\n<!-- b -->\n"; err != nil || string(got) != want {
		t.Errorf("%v: %q, want %q", err, got, want)
	}
	if err := os.WriteFile(filepath.Join(dir, "p.svg"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if page.Check(dir) == nil {
		t.Error("another drawing is taken")
	}
}
