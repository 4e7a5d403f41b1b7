package console

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
)

// The screens that are checked once they have their answers.
var screens = []string{"", "policies", "policies/shorten-per-ip", "callers", "nodes", "changes", "settings", "edit",
	"explain"}

// axe-core finds nothing on any screen, whatever one may do there, in either theme, on a desktop
// and on a telephone.
func TestScreensHaveNoViolationOfAxe(t *testing.T) {
	for role, token := range map[string]string{"an admin": stack.Token, "a viewer": stack.Viewer} {
		p := open(t, token)
		p.eachLook(func(look string, width int64) {
			for _, screen := range screens {
				p.at(screen)
				p.until("has its answers", func() bool { return eval[bool](p, `!document.querySelector("main [aria-busy]")`) })
				p.passesAxe(role+", #/"+screen+", "+look, width)
			}
		})
	}
}

// The same holds where one logs in.
func TestTheLoginHasNoViolationOfAxe(t *testing.T) {
	p := start(t)
	p.do(chromedp.Navigate(stack.Console+"/console"), chromedp.WaitVisible(`input[name="token"]`, chromedp.ByQuery))
	p.eachLook(func(look string, width int64) { p.passesAxe("login, "+look, width) })
}

// The same holds of each dialog.
func TestDialogsHaveNoViolationOfAxe(t *testing.T) {
	p := open(t, stack.Token)
	dialogs := func(look string, width int64, names ...string) {
		for _, name := range names {
			p.click("button", name)
			p.do(chromedp.WaitVisible("dialog[open]", chromedp.ByQuery))
			p.passesAxe(name+", "+look, width)
			p.click("button", "Cancel")
			p.do(chromedp.WaitNotPresent("dialog[open]", chromedp.ByQuery))
		}
	}
	p.eachLook(func(look string, width int64) {
		p.at("policies/shorten-per-ip")
		dialogs(look, width, "Set shorten-per-ip to shadow")
		p.at("settings")
		dialogs(look, width, "All policies to shadow", "Switch all policies off")
		p.at("callers")
		p.do(chromedp.SendKeys(`header input[type="search"]`, "key-of-erin\r", chromedp.ByQuery))
		p.sees("the policy set alone decides")
		dialogs(look, width, "Another limit", "Bypass", "Ban")
	})
}

// eachLook shows the page in each theme, on a desktop and on a telephone.
func (p *page) eachLook(see func(look string, width int64)) {
	for _, theme := range []string{"light", "dark"} {
		for _, width := range []int64{1440, 390} {
			media := &emulation.MediaFeature{Name: "prefers-color-scheme", Value: theme}
			p.do(emulation.SetEmulatedMedia().WithFeatures([]*emulation.MediaFeature{media}),
				chromedp.EmulateViewport(width, 844))
			see(fmt.Sprintf("%s, %d pixels", theme, width), width)
		}
	}
}

// axeCore is the text of axe-core.
var axeCore = sync.OnceValues(func() ([]byte, error) {
	return os.ReadFile(root + "/console/node_modules/axe-core/axe.min.js")
})

// passesAxe checks the shown page: axe-core finds nothing, and nothing is wider than the screen.
func (p *page) passesAxe(what string, width int64) {
	p.t.Helper()
	axe, err := axeCore()
	if err != nil {
		p.t.Fatal(err, ": tools/setup.sh console installs it")
	}
	if found := eval[string](p, string(axe)+axeRun); found != "" {
		p.t.Errorf("%s:\n%s", what, found)
	}
	if wide := eval[int64](p, `document.documentElement.scrollWidth`); wide > width {
		p.t.Errorf("%s: %d pixels wide on a screen of %d", what, wide, width)
	}
}

const axeRun = `;axe.run().then(r => r.violations.map(v =>
	v.id + ": " + v.help + "\n" + v.nodes.map(n => "  " + n.html.slice(0, 160) + "\n  " + n.failureSummary).join("\n")).join("\n"))`

// The command and the REST call that a dialog shows have the same effect as the dialog, whatever
// the caller and the reason are. The shell runs nothing in them.
func TestThePrintedCommandsAreQuoted(t *testing.T) {
	p := open(t, stack.Token)
	for _, hostile := range []string{
		`-rf --all`, `'; touch pwned; '`, `$(touch pwned)`, "`touch pwned`", `"a" & b | c > pwned`, `@/etc/passwd`,
		`*?[]{}~!#\`, `{"a": 1}`, `%00%2f../..`, `<script>document.title="pwned"</script>`,
	} {
		for _, label := range []string{"Command", "REST call"} {
			p.at("callers")
			p.do(chromedp.SendKeys(`header input[type="search"]`, hostile+"\r", chromedp.ByQuery))
			p.sees("the policy set alone decides")
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
			p.sees("the policy set alone decides")
		}
	}
	if title := eval[string](p, `document.title`); strings.Contains(title, "pwned") {
		t.Error("a value ran as a script")
	}
}

// The commands that the editor prints can be pasted as they are, whatever the document has: also
// with lines that would end it for the shell, and without a line break at its end. The same holds
// for the slider's commands.
func TestTheEditorsCommandsArePastable(t *testing.T) {
	p := open(t, stack.Token)
	const begin = "version: weir/v1\npolicies:\n  - {name: pasted, partition: [], limit: {quota: 7, window: 1m}, match: {paths: [/nowhere]}}\n"
	const hostile = "# $(touch pwned) `touch pwned` 'quoted' \"twice\" \\\n"
	for i, document := range []string{
		begin + hostile, begin + hostile + "# it's the last line", begin + hostile + "# \u202e\ttab\n\n",
		// In braces a line begins where it likes.
		"# EOF\n{version: weir/v1, policies: [{name: pasted, partition: [], limit: {quota: 7, window: 1m}, match: {paths: [/nowhere]},\n" +
			"response: {body: \"it says\nEOF\nEOF_1\n\"}}]}\n",
	} {
		for j, label := range []string{"Command", "REST call"} {
			before := current(t)
			text := strings.Replace(document, "quota: 7", fmt.Sprint("quota: ", 10+2*i+j), 1)
			p.at("nodes")
			p.at("edit")
			p.do(chromedp.WaitVisible("textarea", chromedp.ByQuery), chromedp.Evaluate(fmt.Sprintf(`{
				const t = document.querySelector("textarea")
				Object.getOwnPropertyDescriptor(HTMLTextAreaElement.prototype, "value").set.call(t, %q)
				t.dispatchEvent(new Event("input", {bubbles: true}))
			}`, text), nil), chromedp.WaitEnabled(`//button[normalize-space()="Apply …"]`, chromedp.BySearch))
			p.click("button", "Apply …")
			printed := eval[string](p, fmt.Sprintf(`document.querySelector('dialog pre[aria-label=%q]').textContent`, label))
			p.click("button", "Cancel")
			p.do(chromedp.Evaluate(`addEventListener("beforeunload", e => e.stopImmediatePropagation(), true)`, nil))
			runPrinted(t, printed)
			if got, err := stack.Call("GET", "/v1/policyset", ""); err != nil || got != text {
				t.Errorf("%s\nstored %q (%v), want %q", printed, got, err, text)
			}
			if _, err := stack.Call("POST", fmt.Sprintf("/v1/versions/%d/rollback", before), ""); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// current returns the current version.
func current(t *testing.T) uint64 {
	t.Helper()
	var list struct{ Version uint64 }
	if got, err := stack.Call("GET", "/v1/policies", ""); err != nil || json.Unmarshal([]byte(got), &list) != nil {
		t.Fatal(got, err)
	}
	return list.Version
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
