package e2e

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// walk is a section of docs/start/walkthroughs.md: its blocks in their order.
type walk struct {
	title  string
	blocks []block
}

// walks returns the sections of docs/start/walkthroughs.md.
func walks(t *testing.T) (all []walk) {
	t.Helper()
	const page = "docs/start/walkthroughs.md"
	content, err := os.ReadFile(filepath.Join(repository, page))
	if err != nil {
		t.Fatal(err)
	}
	rest := blocks(t, page)
	for i, line := range strings.Split(string(content), "\n") {
		if title, is := strings.CutPrefix(line, "## "); is {
			all = append(all, walk{title: title})
		}
		if len(rest) > 0 && rest[0].line == i+1 {
			last := &all[len(all)-1]
			last.blocks, rest = append(last.blocks, rest[0]), rest[1:]
		}
	}
	return all
}

// The walkthroughs, as a newcomer follows them word by word: each on a set-up of its own, all
// commands in their order. Each line of an output on the page is in the real output, in that order,
// except for texts that differ between runs.
func TestTheWalkthroughsAreTrue(t *testing.T) {
	all := walks(t)
	if len(all) < 4 {
		t.Fatalf("the page has %d sections", len(all))
	}
	for _, w := range all {
		t.Run(w.title, func(t *testing.T) {
			r := newRunner(t)
			r.start()
			output, shown := "", 0
			for _, b := range w.blocks {
				switch b.language {
				case "yaml":
					name, _, _ := strings.Cut(strings.TrimPrefix(b.text, "# "), "\n")
					if err := os.WriteFile(filepath.Join(r.dir, name), []byte(b.text), 0o600); err != nil {
						t.Fatal(err)
					}
				case "bash":
					var err error
					if output, err = r.shell(inFolder(b.text, r.dir)); err != nil {
						t.Fatalf("%s: %v\n%s", b, err, output)
					}
					r.awaitNodes()
				case "text":
					shown++
					mustShow(t, b, renameMetrics(output))
				default:
					t.Errorf("%s: neither a file nor commands nor an output", b)
				}
			}
			if shown < 2 {
				t.Errorf("only %d outputs are compared", shown)
			}
		})
	}
}

// awaitNodes waits until the Envoy has the newest version and all orders: people type more slowly
// than that takes, a test on a busy machine may not.
func (r *runner) awaitNodes() {
	r.t.Helper()
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		output, err := r.shell("build/weir get nodes -o json")
		var got struct {
			Counts struct {
				Active, Behind int
				LackOrders     int `json:"lack_orders"`
			}
		}
		if err == nil && json.Unmarshal([]byte(output), &got) == nil && got.Counts.Active > 0 &&
			got.Counts.Behind+got.Counts.LackOrders == 0 {
			return
		}
	}
	r.t.Fatal("the Envoy does not have the newest version")
}

// inFolder has commands find the page's files in a folder.
func inFolder(script, dir string) string {
	return regexp.MustCompile(`\b[a-z]+\.yaml\b`).ReplaceAllStringFunc(script, func(name string) string {
		return filepath.Join(dir, name)
	})
}

// mustShow holds the lines that a page shows against an output.
func mustShow(t *testing.T, b block, output string) {
	t.Helper()
	rest := alike(output)
	for _, line := range strings.Split(strings.TrimSpace(b.text), "\n") {
		_, after, found := strings.Cut(rest, alike(line))
		if !found {
			t.Fatalf("%s: %q is not in the rest of the output\n%s", b, line, output)
		}
		rest = after
	}
}

// alike leaves out texts that differ between runs: folders, hashes, times and numbers of several
// digits, and how many blanks a table has between its columns.
func alike(text string) string {
	text = regexp.MustCompile(`\S*/([a-z]+\.yaml)`).ReplaceAllString(text, "$1")
	text = regexp.MustCompile(`[0-9a-f]{32}|\d[\d-]*T[\d:]*Z|\d+m[\d.]+s`).ReplaceAllString(text, "N")
	text = regexp.MustCompile(`\d+( are left| seconds)`).ReplaceAllString(text, "N$1")
	text = regexp.MustCompile(`\d{4,}`).ReplaceAllString(text, "N")
	return strings.TrimSpace(regexp.MustCompile(`[ \t]+`).ReplaceAllString(text, " "))
}
