package console

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
)

// The screens, and what each of them shows once it has its answers.
var screens = []string{"", "policies", "policies/shorten-per-ip", "callers", "nodes", "changes", "settings", "edit"}

// axe-core finds nothing on any screen, in either theme, on a desk and on a telephone.
func TestScreensHaveNoViolationOfAxe(t *testing.T) {
	axe, err := os.ReadFile(root + "/console/node_modules/axe-core/axe.min.js")
	if err != nil {
		t.Fatal(err, ": tools/setup.sh console installs it")
	}
	p := open(t, stack.Token)
	for _, theme := range []string{"light", "dark"} {
		for _, width := range []int64{1440, 390} {
			media := &emulation.MediaFeature{Name: "prefers-color-scheme", Value: theme}
			p.do(emulation.SetEmulatedMedia().WithFeatures([]*emulation.MediaFeature{media}),
				chromedp.EmulateViewport(width, 844))
			for _, screen := range screens {
				p.at(screen)
				p.until("has its answers", func() bool { return eval[bool](p, `!document.querySelector("main [aria-busy]")`) })
				found := eval[string](p, string(axe)+axeRun)
				if found != "" {
					t.Errorf("#/%s, %s, %d pixels:\n%s", screen, theme, width, found)
				}
				if wide := eval[int64](p, `document.documentElement.scrollWidth`); wide > width {
					t.Errorf("#/%s, %s: %d pixels wide on a screen of %d", screen, theme, wide, width)
				}
			}
		}
	}
}

const axeRun = `;axe.run().then(r => r.violations.map(v =>
	v.id + ": " + v.help + "\n" + v.nodes.map(n => "  " + n.html.slice(0, 160) + "\n  " + n.failureSummary).join("\n")).join("\n"))`

// The command and the REST call that a dialog shows do what the dialog does, whatever the caller
// and the reason are; nothing in them is run by the shell.
func TestThePrintedCommandsAreQuoted(t *testing.T) {
	p := open(t, stack.Token)
	for _, hostile := range []string{
		`-rf --all`, `'; touch pwned; '`, `$(touch pwned)`, "`touch pwned`", `"a" & b | c > pwned`, `@/etc/passwd`,
		`*?[]{}~!#\`, `{"a": 1}`, `%00%2f../..`, `<script>document.title="pwned"</script>`,
	} {
		for _, label := range []string{"Command", "REST call"} {
			p.at("callers")
			p.do(chromedp.SendKeys(`header input[type="search"]`, hostile+"\r", chromedp.ByQuery))
			p.sees("Nothing of its own")
			p.click("button", "Bypass")
			p.fill("reason", hostile)
			printed := eval[string](p, fmt.Sprintf(`document.querySelector('dialog pre[aria-label=%q]').textContent`, label))
			p.click("button", "Cancel")
			runPrinted(t, printed)
			p.sees("never limited")
			p.sees(hostile)
			p.click("button", "Take back")
			printed = eval[string](p, fmt.Sprintf(`document.querySelector('dialog pre[aria-label=%q]').textContent`, label))
			p.click("button", "Cancel")
			runPrinted(t, printed)
			p.sees("Nothing of its own")
		}
	}
	if title := eval[string](p, `document.title`); strings.Contains(title, "pwned") {
		t.Error("a value ran as a script")
	}
}

func runPrinted(t *testing.T, command string) {
	t.Helper()
	dir := t.TempDir()
	tools, err := filepath.Abs(root + "/build")
	if err != nil {
		t.Fatal(err)
	}
	shell := exec.Command("sh", "-c", strings.Replace(command, "curl ", "curl --fail-with-body -sS ", 1))
	shell.Dir = dir
	shell.Env = append(os.Environ(), "PATH="+tools+":"+os.Getenv("PATH"), "WEIR_TOKEN="+stack.Token,
		"WEIR_SERVER="+stack.Console, "XDG_CONFIG_HOME="+dir)
	if out, err := shell.CombinedOutput(); err != nil {
		t.Errorf("%s\n%v\n%s", command, err, out)
	}
	if made, err := os.ReadDir(dir); err != nil || len(made) > 0 {
		t.Errorf("%s\nmade %v (%v)", command, made, err)
	}
}
