package e2e

import (
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/weir-proxy/weir/shared/policy"
)

// block is a fenced block of a Markdown file.
type block struct {
	file, language, text string
	line                 int
}

func (b block) String() string { return fmt.Sprintf("%s:%d (%s)", b.file, b.line, b.language) }

// blocks reads the fenced blocks of a file of the repository.
func blocks(t *testing.T, name string) (all []block) {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(repository, name))
	if err != nil {
		t.Fatal(err)
	}
	open := false
	for i, line := range strings.Split(string(content), "\n") {
		switch language, fence := strings.CutPrefix(line, "```"); {
		case fence && open:
			open = false
		case fence:
			open = true
			all = append(all, block{file: name, language: language, line: i + 1})
		case open:
			all[len(all)-1].text += line + "\n"
		}
	}
	if open {
		t.Fatalf("%s: a fenced block is not closed", name)
	}
	return all
}

// pages returns the Markdown files of the repository, README.md first.
func pages(t *testing.T) []string {
	t.Helper()
	all := []string{"README.md"}
	for _, pattern := range []string{"*.md", "docs/*.md", "docs/*/*.md"} {
		found, err := filepath.Glob(filepath.Join(repository, pattern))
		if err != nil || len(found) == 0 {
			t.Fatal(pattern, err)
		}
		for _, page := range found {
			name, err := filepath.Rel(repository, page)
			if err != nil {
				t.Fatal(err)
			}
			if name != "README.md" {
				all = append(all, name)
			}
		}
	}
	return all
}

// documentation returns all blocks of the pages for users: README.md and docs.
func documentation(t *testing.T) (all []block) {
	t.Helper()
	for _, page := range pages(t) {
		if page == "README.md" || strings.HasPrefix(page, "docs/") {
			all = append(all, blocks(t, page)...)
		}
	}
	return all
}

// The commands of the documentation, run in its order against a running set-up. Cloning and make
// are not run again: make's tasks only have to exist.
func TestTheReadmesCommandsWork(t *testing.T) {
	r := newRunner(t)
	r.start()
	ran := 0
	for _, b := range documentation(t) {
		if b.language != "sh" {
			continue
		}
		script := ""
		for _, line := range strings.Split(b.text, "\n") {
			switch {
			case strings.HasPrefix(line, "git clone "):
			case strings.HasPrefix(line, "make "), strings.Contains(line, " make "):
				mustBeTasks(t, b, line)
			default:
				script += line + "\n"
			}
		}
		if strings.TrimSpace(script) == "" {
			continue
		}
		ran++
		output, err := r.shell(script)
		if err != nil {
			t.Errorf("%s: %v\n%s\n%s", b, err, script, output)
		}
		if strings.Contains(script, "uniq -c") && !regexp.MustCompile(`\d+ 200\n +\d+ 429\nHTTP/1.1 429 `).MatchString(output) {
			t.Errorf("%s should show some 200 and some 429, then a 429 with its headers, and shows\n%s", b, output)
		}
	}
	if ran < 2 {
		t.Errorf("README.md has only %d blocks of commands", ran)
	}
}

// shell runs a script in the repository's root. It replaces the documented ports by the ports of
// this set-up.
func (r *runner) shell(script string) (string, error) {
	script = strings.NewReplacer(
		"127.0.0.1:10000", fmt.Sprint("127.0.0.1:", r.envoy), "127.0.0.1:9901", fmt.Sprint("127.0.0.1:", r.admin),
		"127.0.0.1:8080", fmt.Sprint("127.0.0.1:", r.controlPlane), "~/.config/", r.home+"/",
		"https://api.example.com", fmt.Sprint("http://127.0.0.1:", r.envoy),
	).Replace(script)
	command := exec.CommandContext(r.t.Context(), "bash", "-eu", "-c", script)
	command.Dir = repository
	command.Env = append(os.Environ(), "XDG_CONFIG_HOME="+r.home, fmt.Sprintf("WEIR_SERVER=http://127.0.0.1:%d",
		r.controlPlane))
	output, err := command.Output()
	return string(output), err
}

// mustBeTasks holds a line with make to tasks that the Makefile has.
func mustBeTasks(t *testing.T, b block, line string) {
	t.Helper()
	makefile, err := os.ReadFile(filepath.Join(repository, "Makefile"))
	if err != nil {
		t.Fatal(err)
	}
	line, _, _ = strings.Cut(line, "#")
	_, tasks, _ := strings.Cut(" "+line, " make ")
	for _, task := range strings.Fields(tasks) {
		if !strings.Contains(string(makefile), "\n"+task+":") {
			t.Errorf("%s: the Makefile has no task %s", b, task)
		}
	}
}

// The refusal in the documentation has the status, the headers and the body of a real refusal.
func TestTheReadmeShowsARealRefusal(t *testing.T) {
	r := newRunner(t)
	r.start()
	load{url: r.url("/shorten"), clients: 4, total: 100}.run(t.Context()).mustBe(t, 200)
	real := ask(t, http.MethodPost, r.url("/shorten"))
	shown := 0
	for _, b := range blocks(t, "README.md") {
		if b.language != "http" {
			continue
		}
		shown++
		head, body, _ := strings.Cut(b.text, "\n\n")
		lines := strings.Split(head, "\n")
		if want := fmt.Sprintf("HTTP/1.1 %d %s", real.status, http.StatusText(real.status)); lines[0] != want {
			t.Errorf("%s says %s, the answer is %s", b, lines[0], want)
		}
		known := map[string]bool{"Date": true, "Server": true, "Content-Length": true} // Not Weir's.
		for _, line := range lines[1:] {
			name, value, _ := strings.Cut(line, ": ")
			known[http.CanonicalHeaderKey(name)] = true
			if got := real.Get(name); withoutNumbers(got) != withoutNumbers(value) {
				t.Errorf("%s says %s, the answer has %q", b, line, got)
			}
		}
		for name := range real.Header {
			if !known[name] {
				t.Errorf("%s does not show %s", b, name)
			}
		}
		if withoutNumbers(body) != withoutNumbers(real.body) {
			t.Errorf("%s says\n%s\nthe answer is\n%s", b, body, real.body)
		}
	}
	if shown == 0 {
		t.Error("README.md shows no refusal")
	}
}

// withoutNumbers leaves out the parts that differ between answers, and line breaks.
func withoutNumbers(text string) string {
	text = regexp.MustCompile(`\s+`).ReplaceAllString(strings.TrimSpace(text), " ")
	text = strings.NewReplacer(", \"", ",\"", "{ ", "{", " }", "}").Replace(text)
	return regexp.MustCompile(`\d{2,}`).ReplaceAllString(text, "N")
}

// Policies and configurations of the documentation are valid.
func TestTheReadmesSnippetsAreValid(t *testing.T) {
	seen := map[string]int{}
	for _, b := range documentation(t) {
		seen[b.language]++
		switch b.language {
		case "yaml":
			var document any
			if err := yaml.Unmarshal([]byte(b.text), &document); err != nil {
				t.Errorf("%s: %v", b, err)
			}
			// A manifest of Kubernetes may have a policy set inside.
			if !strings.Contains(b.text, "version: weir/v1") || strings.Contains(b.text, "apiVersion:") {
				continue
			}
			check := exec.Command(controlPlanePath, "check", "-")
			check.Stdin = strings.NewReader(b.text)
			if output, err := check.CombinedOutput(); err != nil {
				t.Errorf("%s: %v\n%s", b, err, output)
			}
		case "json":
			node, err := policy.ParseJSON([]byte(b.text))
			if err == nil {
				_, err = policy.DecodePlugin(node)
			}
			if err != nil {
				t.Errorf("%s: %v", b, err)
			}
		case "sh", "bash", "http", "text", "mermaid", "nginx":
		case "go", "python", "typescript":
			if b.file != consumersPage {
				t.Errorf("%s: no test runs it", b)
			}
		default:
			t.Errorf("%s: no test knows this language", b)
		}
	}
	for _, language := range []string{"sh", "yaml", "json", "http"} {
		if seen[language] == 0 {
			t.Errorf("README.md has no block of %s", language)
		}
	}
}
