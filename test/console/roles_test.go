package console

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
)

// looking are the names of buttons that change nothing.
var looking = []string{"Light or dark", "Keys", "Log out", "The document", "Look at the document", "An hour", "A day", "Find",
	"Explain a request"}

// buttons returns the names of the buttons that a page shows, without buttons that change nothing.
func buttons(p *page) []string {
	p.t.Helper()
	names := eval[[]string](p, `[...document.querySelectorAll("button, [role=button], main a.button")].map(b =>
		b.getAttribute("aria-label") || b.textContent.trim())`)
	return slices.DeleteFunc(names, func(name string) bool {
		return slices.Contains(looking, name) || strings.HasPrefix(name, "Copy: ") || strings.HasPrefix(name, "Suggested: ") ||
			strings.HasPrefix(name, "In force: ")
	})
}

// actions are buttons that a screen offers to users who may change something.
var actions = map[string][]string{
	"":                        {"Set shorten-per-ip to shadow"},
	"policies/shorten-per-ip": {"Set shorten-per-ip to shadow", "Edit"},
	"policies":                {"Edit the policy set"},
	"changes/1":               {},
	"callers":                 {},
	"nodes":                   {},
	"settings":                {"All policies to shadow", "Switch all policies off", "Lift"},
	"edit":                    {"Discard", "Apply …"},
}

// A viewer is offered nothing that changes something, on any screen; an editor is.
func TestWhatARoleMayNotDoIsNotOffered(t *testing.T) {
	if _, err := stack.Call("PUT", "/v1/enforcement",
		`{"orders": [{"state": "shadow", "policy": "resolve-per-ip", "reason": "for the roles"}]}`); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { stack.Call("PUT", "/v1/enforcement", `{"orders": []}`) })
	const caller = "/v1/consumers/key-of-carol?source=header:x-api-key"
	if _, err := stack.Call("PUT", caller, `{"banned": {"reason": "for the roles"}}`); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { stack.Call("DELETE", caller, "") })
	viewer, editor := open(t, stack.Viewer), open(t, stack.Editor)
	for screen, want := range actions {
		viewer.at(screen)
		editor.at(screen)
		editor.until("offers its actions on #/"+screen, func() bool { return covers(buttons(editor), want) })
		viewer.until("has its answers", func() bool { return eval[bool](viewer, `!document.querySelector("main [aria-busy]")`) })
		if got := buttons(viewer); len(got) > 0 {
			t.Errorf("#/%s offers to a viewer %q", screen, got)
		}
	}
	if !eval[bool](viewer, `location.hash = "#/edit", new Promise(done => {
		const look = () => { const t = document.querySelector("textarea"); t ? done(t.readOnly) : setTimeout(look, 50) }
		look()
	})`) {
		t.Error("a viewer can write into the document")
	}
	for _, p := range []*page{viewer, editor} {
		p.do(chromedp.SendKeys(`header input[type="search"]`, "key-of-carol\r", chromedp.ByQuery))
		p.sees("banned for the roles")
	}
	want := []string{"Another limit", "Bypass", "Ban", "Take back"}
	editor.until("offers the acts on a caller", func() bool { return covers(buttons(editor), want) })
	if got := buttons(viewer); len(got) > 0 {
		t.Errorf("the screen of a caller offers to a viewer %q", got)
	}
}

func covers(have, want []string) bool {
	return !slices.ContainsFunc(want, func(w string) bool { return !slices.Contains(have, w) })
}

// changes are calls that change something, a call for each action of the console.
var changes = []struct{ method, path, body string }{
	{"PUT", "/v1/policyset", `{"version": "weir/v1"}`},
	{"PATCH", "/v1/policies/login", `{"limit": {"quota": 7}}`},
	{"POST", "/v1/versions/1/rollback", ""},
	{"PUT", "/v1/rollout", `{"nodes": "100%"}`},
	{"DELETE", "/v1/rollout", ""},
	{"PUT", "/v1/enforcement", `{"orders": []}`},
	{"PUT", "/v1/consumers/key-of-dave?source=header:x-api-key", `{"tier": "premium"}`},
	{"DELETE", "/v1/consumers/key-of-dave?source=header:x-api-key", ""},
	{"POST", "/v1/penalties/pardon?policy=login&key=" + strings.Repeat("0", 32), `{"reason": "none"}`},
}

// The server refuses to a viewer's session the actions that the page does not offer; an editor's
// session may do them.
func TestWhatARoleMayNotDoIsRefused(t *testing.T) {
	viewer, editor := open(t, stack.Viewer), open(t, stack.Editor)
	call := func(p *page, method, path, body string) int {
		return eval[int](p, fmt.Sprintf(`fetch(%q, {method: %q, body: %q || undefined, headers: {
			"Weir-Console": "1", "If-Match": "*", "Content-Type": "application/json"}}).then(r => r.status)`, path, method, body))
	}
	before, err := stack.Call("GET", "/v1/audit", "")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range changes {
		if got := call(viewer, c.method, c.path, c.body); got != 403 {
			t.Errorf("%s %s answers a viewer with %d", c.method, c.path, got)
		}
	}
	after, err := stack.Call("GET", "/v1/audit", "")
	if err != nil || before != after {
		t.Errorf("the audit has more after the calls of a viewer: %v\n%s", err, after)
	}
	dave := changes[6]
	if got := call(editor, dave.method, dave.path, dave.body); got >= 300 {
		t.Errorf("%s %s answers an editor with %d", dave.method, dave.path, got)
	}
	stack.Call("DELETE", dave.path, "")
}
