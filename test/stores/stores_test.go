// Package stores runs the tests of the Redis store with further servers: Redis of other versions,
// and Valkey. `make test-stores` runs it and writes the tables of docs/run/compatibility.md.
package stores

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weir-proxy/weir/test/figures"
	"github.com/weir-proxy/weir/test/support/redistest"
)

var write = flag.Bool("write", false, "write the tables of servers")

const repository = "../.."

// packages use Redis: the store, the control plane on it, and clients in several languages.
var packages = []string{"./controlplane/internal/store/redisstore", "./controlplane/internal/app", "./test/twins"}

// columns are the first table's columns, each with the names of its tests. A test belongs to the
// first column that has its name.
var columns = []struct {
	title string
	tests *regexp.Regexp
}{
	{"Cluster", regexp.MustCompile(`Cluster|/cluster`)},
	{"Sentinel", regexp.MustCompile(`Sentinel`)},
	{"TLS", regexp.MustCompile(`TLS`)},
	{"ACL", regexp.MustCompile(`Rights|NOPERM|WRONGPASS`)},
	{"one server", regexp.MustCompile(``)},
}

// algorithms are the columns of the second table.
var algorithms = []string{
	"token_bucket", "fixed_window", "sliding_window_counter", "sliding_window", "sliding_log",
}

// outcome is a server's row in both tables.
type outcome struct {
	server string
	// passed counts tests by the title of their column, bytes is a bucket's size by its algorithm.
	passed map[string]int
	bytes  map[string]string
}

// oldest is a server that is too old.
const oldest = "redis-6.0"

func TestTheStoreRunsOnEachServer(t *testing.T) {
	var outcomes []outcome
	for _, s := range readServers(t) {
		t.Run(s.name, func(t *testing.T) {
			if _, err := os.Stat(s.script); err != nil {
				t.Fatalf("cannot find the server: %v; run `make test-stores`", err)
			}
			if s.name == oldest {
				wantRefusal(t, s.script)
			} else {
				outcomes = append(outcomes, runSuite(t, s.script))
			}
		})
	}
	if *write && !t.Failed() {
		writeTables(t, outcomes)
	}
}

// server is a line of tools/stores.txt.
type server struct {
	name string
	// script runs the server. `tools/setup.sh stores` makes it.
	script string
}

// readServers reads tools/stores.txt, which has oldest and at least one further server.
func readServers(t *testing.T) (servers []server) {
	content, err := os.ReadFile(repository + "/tools/stores.txt")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(content)) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		fields := strings.Fields(line)
		if len(fields) != 3 {
			t.Fatalf("tools/stores.txt: %q is no name, release and program", line)
		}
		folder := filepath.Join(os.Getenv("WEIR_CACHE"), "stores", strings.Join(fields, "-"))
		servers = append(servers, server{fields[0], filepath.Join(folder, "redis-server")})
	}
	isOldest := func(s server) bool { return s.name == oldest }
	if len(servers) < 2 || !slices.ContainsFunc(servers, isOldest) {
		t.Fatalf("tools/stores.txt has %v, and needs %s and a further server", servers, oldest)
	}
	return servers
}

// runSuite runs the tests with one server, which is the first redis-server on the path.
func runSuite(t *testing.T, script string) outcome {
	o := outcome{server: version(t, script), passed: map[string]int{}, bytes: map[string]string{}}
	cmd := exec.Command("go", append([]string{"test", "-count=1", "-json", "-timeout=20m"}, packages...)...)
	cmd.Dir = repository
	cmd.Env = append(os.Environ(), "PATH="+filepath.Dir(script)+":"+os.Getenv("PATH"))
	output, runErr := cmd.Output()
	failed := o.read(t, output)
	for _, c := range columns {
		t.Logf("%s, %s: %d tests passed", o.server, c.title, o.passed[c.title])
		if o.passed[c.title] == 0 {
			t.Errorf("%s: no test of %s has run", o.server, c.title)
		}
	}
	if runErr != nil && !failed {
		t.Errorf("%s: cannot run the tests: %v", o.server, runErr)
	}
	for _, name := range algorithms {
		if o.bytes[name] == "" {
			t.Errorf("%s: no test has said how many bytes a bucket of %s takes", o.server, name)
		}
	}
	return o
}

// wantRefusal starts a control plane with a Redis that is too old. It ends within 30 s and says so.
func wantRefusal(t *testing.T, script string) {
	t.Setenv("PATH", filepath.Dir(script)+":"+os.Getenv("PATH"))
	server := redistest.Start(t)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, repository+"/build/weir",
		"serve", "--listen", "127.0.0.1:0", "--redis-url", server.URL())
	cmd.Env = append(os.Environ(), "HOME="+t.TempDir(), "XDG_STATE_HOME="+t.TempDir())
	said, err := cmd.CombinedOutput()
	if ctx.Err() != nil {
		t.Error("the control plane still runs after 30 s")
	}
	if want := "which is older than 6.2: upgrade Redis"; err == nil || !strings.Contains(string(said), want) {
		t.Errorf("the control plane ends with %v and says\n%s\nwant %q", err, said, want)
	}
}

// version returns the name and version of a server, as in "Redis 7.0.15".
func version(t *testing.T, script string) string {
	said, err := exec.Command(script, "--version").Output()
	m := regexp.MustCompile(`^(Redis|Valkey) server v=([0-9.]+) `).FindSubmatch(said)
	if err != nil || m == nil {
		t.Fatalf("%s --version says %q: %v", script, said, err)
	}
	return fmt.Sprintf("%s %s", m[1], m[2])
}

var sizeLine = regexp.MustCompile("a bucket of `(\\w+)`.* takes (\\d+) bytes")

// read reads the events of `go test -json`. It prints the output of tests that fail.
func (o *outcome) read(t *testing.T, events []byte) (failed bool) {
	printed := map[string]string{}
	for lines := bufio.NewScanner(bytes.NewReader(events)); lines.Scan(); {
		var e struct{ Action, Package, Test, Output string }
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			t.Fatalf("%s: %v", lines.Text(), err)
		}
		name := e.Package + "." + e.Test
		switch e.Action {
		case "output":
			printed[name] += e.Output
			if m := sizeLine.FindStringSubmatch(e.Output); m != nil {
				o.bytes[m[1]] = m[2]
			}
		case "pass":
			if e.Test != "" {
				o.passed[column(e.Test)]++
			}
		case "fail":
			t.Errorf("%s: %s failed:\n%s", o.server, name, printed[name])
			failed = true
		}
	}
	return failed
}

func column(test string) string {
	for _, c := range columns {
		if c.tests.MatchString(test) {
			return c.title
		}
	}
	panic("the last column takes all tests")
}

// writeTables writes both tables into the page.
func writeTables(t *testing.T, outcomes []outcome) {
	suite, sizes := figures.Table{{"server"}}, figures.Table{{"bytes of a bucket in"}}
	for _, c := range columns {
		suite[0] = append(suite[0], c.title)
	}
	for _, name := range algorithms {
		sizes[0] = append(sizes[0], "`"+name+"`")
	}
	for _, o := range outcomes {
		suite = append(suite, append([]string{o.server}, slices.Repeat([]string{"yes"}, len(columns))...))
		row := []string{o.server}
		for _, name := range algorithms {
			row = append(row, o.bytes[name])
		}
		sizes = append(sizes, row)
	}
	text := suite.Markdown() + "\nA bucket that allows 100 requests a minute, all of them used:\n" +
		sizes.Markdown() + "\n"
	page := figures.Page{Name: "run/compatibility.md", Sections: []figures.Section{{
		Begin: "<!-- written by make test-stores -->\n", End: "<!-- end of servers -->\n", Text: text,
	}}}
	if err := page.Write(repository + "/docs"); err != nil {
		t.Fatal(err)
	}
}
