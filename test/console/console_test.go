package console

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
)

// patience bounds how long a test waits for an expected event.
const patience = 20 * time.Second

var stack *Stack

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "weir-console")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	stack, err = StartStack(dir)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer stack.Stop()
	loading, cancel := context.WithCancel(context.Background())
	defer cancel()
	go stack.Load(loading, 50)
	return m.Run()
}

// page is a browser with one tab.
type page struct {
	t   *testing.T
	ctx context.Context
}

// open starts a browser and logs in.
func open(t *testing.T, token string) *page {
	t.Helper()
	p := start(t)
	p.do(LogIn(stack.Console, token))
	return p
}

// start starts a browser at 1440 by 900.
func start(t *testing.T) *page {
	t.Helper()
	ctx, cancel := Browser(context.Background())
	t.Cleanup(cancel)
	p := &page{t: t, ctx: ctx}
	if err := chromedp.Run(ctx); err != nil { // The browser lives as long as this context.
		t.Fatal("chromium does not start: ", err)
	}
	p.do(chromedp.EmulateViewport(1440, 900))
	return p
}

// do runs actions. If an action does not succeed in time, the test fails with the page's text.
func (p *page) do(actions ...chromedp.Action) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.ctx, patience)
	defer cancel()
	if err := chromedp.Run(ctx, actions...); err != nil {
		p.t.Fatalf("%v; the page shows:\n%s", err, p.text())
	}
}

func (p *page) text() string {
	var text string
	ctx, cancel := context.WithTimeout(p.ctx, patience)
	defer cancel()
	if err := chromedp.Run(ctx, chromedp.Text("body", &text, chromedp.ByQuery)); err != nil {
		return err.Error()
	}
	return text
}

// sees waits until the page shows a text.
func (p *page) sees(text string) {
	p.t.Helper()
	p.until("shows "+text, func() bool { return strings.Contains(p.text(), text) })
}

func (p *page) until(what string, holds func() bool) {
	p.t.Helper()
	for deadline := time.Now().Add(patience); !holds(); time.Sleep(100 * time.Millisecond) {
		if time.Now().After(deadline) {
			p.t.Fatalf("the page never %s; it shows:\n%s", what, p.text())
		}
	}
}

// click clicks on the first element that has a text or a label.
func (p *page) click(element, name string) {
	p.t.Helper()
	p.do(chromedp.Click(Named(element, name), chromedp.BySearch))
}

func (p *page) fill(name, text string) {
	p.t.Helper()
	p.do(chromedp.SendKeys(fmt.Sprintf(`dialog [name=%q]`, name), text, chromedp.ByQuery))
}

// eval returns the value of an expression of JavaScript, a promise's too.
func eval[T any](p *page, expression string) (value T) {
	p.t.Helper()
	await := func(e *runtime.EvaluateParams) *runtime.EvaluateParams { return e.WithAwaitPromise(true) }
	p.do(chromedp.Evaluate(expression, &value, await))
	return value
}

func (p *page) at(hash string) {
	p.t.Helper()
	p.do(chromedp.Evaluate(`location.hash = "#/`+hash+`"`, nil), chromedp.WaitVisible("main h1, main .tiles", chromedp.ByQuery))
}

// Is the limiter the cause? The tiles say how many were refused, and how many nodes are on the
// failure ladder; all of it fits on one screen.
func TestOneScreenSaysWhetherTheLimiterIsTheCause(t *testing.T) {
	p := open(t, stack.Token)
	p.sees("On the failure ladder")
	p.sees("of 1 active node")
	p.until("counts refusals", func() bool { return strings.Contains(p.text(), "shorten-per-ip") })
	if height := eval[int](p, `document.documentElement.scrollHeight`); height > 900 {
		t.Errorf("the overview is %d pixels high, and the screen 900", height)
	}
}

func TestWhatChangedIsShown(t *testing.T) {
	p := open(t, stack.Token)
	if _, err := stack.Call("PATCH", "/v1/policies/login", `{"limit": {"quota": 6}}`); err != nil {
		t.Fatal(err)
	}
	p.sees("login: limit 5 per 1m → 6 per 1m")
	p.click("a", "Changes")
	p.sees("Versions")
	p.at("policies/login")
	const said = `[...document.querySelectorAll("main .words li")].some(l => l.textContent.includes("5 per 1m → 6 per 1m"))`
	p.until("lists the version's changes of the policy", func() bool { return eval[bool](p, said) })
}

// Who is hit? One click on a caller leads to the reasons.
func TestOneClickLeadsToWhy(t *testing.T) {
	p := open(t, stack.Token)
	p.do(chromedp.WaitVisible(`a[title="Why?"]`, chromedp.ByQuery), chromedp.Click(`a[title="Why?"]`, chromedp.ByQuery))
	p.sees("Why was it refused?")
	p.sees("the quota was used up")
}

// Make it stop: a policy goes into shadow, every node has the order, and one click undoes it.
func TestAPolicyGoesIntoShadowAndBack(t *testing.T) {
	p := open(t, stack.Token)
	p.click("button", "Set resolve-per-ip to shadow")
	p.fill("reason", "it refuses all checkouts")
	p.click("summary", "The same from a terminal")
	p.sees("weir enforcement set shadow --policy resolve-per-ip --reason 'it refuses all checkouts' --for 30m")
	p.click("button", "Set to shadow")
	p.sees("resolve-per-ip is in shadow.")
	p.sees("obeyed by 1 of 1 node")
	orders, err := stack.Call("GET", "/v1/enforcement", "")
	if err != nil || !strings.Contains(orders, `"policy":"resolve-per-ip"`) || !strings.Contains(orders, "it refuses all checkouts") {
		t.Errorf("%s %v", orders, err)
	}
	p.click("button", "Undo")
	p.until("has undone it", func() bool {
		orders, err := stack.Call("GET", "/v1/enforcement", "")
		return err == nil && !strings.Contains(orders, "resolve-per-ip")
	})
}

// The console and `weir get nodes` name the state of a node alike.
func TestNodesHaveTheWordsOfTheCommand(t *testing.T) {
	p := open(t, stack.Token)
	p.at("nodes")
	p.sees("obeyed")
	p.sees("normal")
}

// Make it stop: a caller gets another limit until a time, and one click takes it back.
func TestACallerGetsAnotherLimitAndBack(t *testing.T) {
	const path = "/v1/consumers/key-of-bob?source=header:x-api-key"
	p := open(t, stack.Token)
	p.do(chromedp.SendKeys(`header input[type="search"]`, "key-of-bob\r", chromedp.ByQuery))
	p.sees("the policy set alone decides")
	if at := eval[string](p, `location.href`); strings.Contains(at, "bob") {
		t.Errorf("the caller's value is in the address %s", at)
	}
	p.click("button", "Another limit")
	p.fill("reason", "launch week")
	p.click("button", "Give this limit")
	p.sees("1000 per 1m launch week")
	got, err := stack.Call("GET", path, "")
	if err != nil || !strings.Contains(got, `"quota":1000`) || !strings.Contains(got, "expires_at") {
		t.Errorf("%s %v", got, err)
	}
	p.click("button", "Undo")
	p.sees("the policy set alone decides")
}

// The editor shows the result of the server's check while one types, and applies a valid document.
func TestTheEditorChecksWhileOneTypes(t *testing.T) {
	p := open(t, stack.Token)
	p.at("edit")
	p.sees("this is the document in force")
	set := func(from, to string) {
		p.do(chromedp.Evaluate(fmt.Sprintf(`{
			const t = document.querySelector("textarea")
			Object.getOwnPropertyDescriptor(HTMLTextAreaElement.prototype, "value").set.call(t, t.value.replace(%q, %q))
			t.dispatchEvent(new Event("input", {bubbles: true}))
		}`, from, to), nil))
	}
	set("quota: 5000", "quota: -1")
	p.sees("must be a whole number from 0")
	set("quota: -1", "quota: 0")
	p.sees("every request is refused")
	if strings.Contains(p.text(), "undefined") {
		t.Error("the editor does not show a quota of 0")
	}
	set("quota: 0", "quota: 4000")
	p.sees("5000 per 1s → 4000 per 1s")
	p.click("button", "Apply …")
	p.click("button", "Apply")
	p.sees("is in force.")
	p.click("button", "Undo")
	p.until("rolled back", func() bool {
		text, err := stack.Call("GET", "/v1/policyset", "")
		return err == nil && strings.Contains(text, "quota: 5000")
	})
}

func TestALinkLeadsToTheDashboard(t *testing.T) {
	p := open(t, stack.Viewer)
	p.sees("Dashboard")
	if !eval[bool](p, fmt.Sprintf(`(() => {
		const a = [...document.querySelectorAll("nav a")].find(a => a.textContent.startsWith("Dashboard"))
		return a.href === %q && a.target === "_blank" && a.rel === "noopener noreferrer"
	})()`, dashboard)) {
		t.Error("the link leads elsewhere, or sends its target the address of this page")
	}
}

func TestKeysLeadToScreens(t *testing.T) {
	p := open(t, stack.Token)
	for key, title := range map[string]string{"n": "Nodes", "p": "Policies", "c": "Callers", "h": "Changes",
		"s": "Settings"} {
		p.do(chromedp.KeyEvent("g"), chromedp.KeyEvent(key))
		p.until("is at "+title, func() bool { return eval[string](p, `document.querySelector("h1").textContent`) == title })
	}
	p.do(chromedp.KeyEvent("?"))
	p.sees("this list")
	p.click("button", "Close")
	p.do(chromedp.KeyEvent("/"))
	if !eval[bool](p, `document.activeElement.type === "search"`) {
		t.Error("/ does not lead to the search")
	}
}

// The sources build the files that are committed, byte for byte.
func TestTheSourcesBuildTheFiles(t *testing.T) {
	into := t.TempDir()
	if out, err := exec.Command(root+"/console/build.sh", into).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	const committed = root + "/controlplane/internal/serve/console/dist"
	built, have := list(t, into), list(t, committed)
	if !slices.Equal(built, have) {
		t.Fatalf("built are %v, committed %v: run make console", built, have)
	}
	for _, name := range built {
		a, err := os.ReadFile(filepath.Join(into, name))
		if err != nil {
			t.Fatal(err)
		}
		b, err := os.ReadFile(filepath.Join(committed, name))
		if err != nil || !bytes.Equal(a, b) {
			t.Errorf("%s differs from a build of the sources: run make console (%v)", name, err)
		}
	}
}

func list(t *testing.T, dir string) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}
