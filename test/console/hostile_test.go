package console

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/network"
	cdp "github.com/chromedp/cdproto/page"
	"github.com/chromedp/chromedp"
)

// hostileAnswers replaces the names of policies by 10 000 hostile names, before the page's scripts
// run, like a server that lets anything through. Callers, nodes and reasons become hostile, too.
const hostileAnswers = `
const shapes = [
	n => "<script>pwned(" + n + ")</" + "script>",
	n => "<img src=x onerror=pwned(" + n + ")>",
	n => "\"'><svg/onload=pwned(" + n + ")>",
	n => "javascript:pwned(" + n + ")",
	n => "\u202e" + n + "\u2066evil\u200f",
	n => "a\u0000b" + n,
	n => "{{constructor.constructor('pwned(" + n + ")')()}}",
	n => "` + "`${pwned(\" + n + \")}`" + `",
	n => n + "x".repeat(4000),
	n => "\ud800" + n + "__proto__",
]
window.hostile = Array.from({length: 10000}, (_, n) => shapes[n % shapes.length](n))
window.ran = 0
window.violations = 0
window.pwned = () => { window.ran++ }
addEventListener("securitypolicyviolation", () => { window.violations++ })
const asked = window.fetch
let next = 0
const words = new Set(["reason", "by", "node", "id", "policy", "summary", "path", "source", "user_agent", "name", "consumer"])
const spoil = v => Array.isArray(v) ? v.map(spoil) : v && typeof v === "object"
	? Object.fromEntries(Object.entries(v).map(([k, v]) =>
		[k, typeof v === "string" && words.has(k) ? hostile[next++ % hostile.length] : k === "shown" ? {caller: hostile[next++ % 10000]} : spoil(v)]))
	: v
window.fetch = async (...args) => {
	const url = args[0].url ?? String(args[0])
	if (/\/v1\/policies\?/.test(url)) args[0] = new Request(url.replace(/&page_token=[^&]*/, ""), args[0]) // The server gave none.
	const got = await asked(...args)
	if (!/\/v1\/(policyset|policies|top|decisions|audit|nodes|enforcement|check|versions)/.test(url) || !got.ok) return got
	const text = await got.clone().text()
	let body
	try { body = JSON.parse(text) } catch { return got }
	if (url.includes("policyset")) body.policies = hostile.map(name => ({...body.policies[0], name}))
	else if (/\/v1\/policies\?/.test(url)) {
		const {searchParams: asked} = new URL(url)
		const from = Number(asked.get("page_token") ?? 0), to = from + Number(asked.get("page_size"))
		body.policies = hostile.slice(from, to).map(name => ({...body.policies[0], name, partition: [name]}))
		body.found = hostile.length
		body.next_page_token = to < hostile.length ? String(to) : ""
	}
	else if (!url.includes("check")) body = spoil(body)
	return new Response(JSON.stringify(body), {status: got.status, headers: got.headers})
}`

// readAll scrolls through the table of policies and returns how many of the names it shows as text.
const readAll = `(async () => {
	const table = document.querySelector(".table.virtual")
	const seen = new Set()
	for (let top = 0; top <= table.scrollHeight; top += 1000) {
		table.scrollTop = top
		do await new Promise(done => requestAnimationFrame(() => setTimeout(done)))
		while (table.ariaBusy) // Until the pages in sight have come.
		for (const a of table.querySelectorAll("a")) seen.add(a.textContent)
	}
	return hostile.filter(h => seen.has(h)).length
})()`

// readingWaits is for how many seconds at most the page reads its own text.
const readingWaits = 180

// 10 000 hostile values are shown as text on the screens, and none of them runs; no request leaves
// for another host, and the page's own rules of content refuse nothing that it needs.
func TestHostileValuesAreShownAsText(t *testing.T) {
	p := open(t, stack.Token)
	var lock sync.Mutex
	var elsewhere []string
	chromedp.ListenTarget(p.ctx, func(event any) {
		e, ok := event.(*network.EventRequestWillBeSent)
		if ok && !strings.HasPrefix(e.Request.URL, stack.Console+"/") && !strings.HasPrefix(e.Request.URL, "data:image/") {
			lock.Lock()
			elsewhere = append(elsewhere, e.Request.URL)
			lock.Unlock()
		}
	})
	p.do(network.Enable(), chromedp.ActionFunc(func(ctx context.Context) error {
		_, err := cdp.AddScriptToEvaluateOnNewDocument(hostileAnswers).Do(ctx)
		return err
	}), chromedp.Reload())
	p.at("policies")
	p.do(chromedp.WaitVisible(".table.virtual", chromedp.ByQuery))
	// A busy machine takes minutes to draw them all, so the page reads while the test waits.
	eval[bool](p, `window.shown = -1; `+readAll+`.then(n => { window.shown = n }); true`)
	for range readingWaits {
		if eval[int](p, `window.shown`) >= 0 {
			break
		}
		time.Sleep(time.Second)
	}
	if shown := eval[int](p, `window.shown`); shown != 10000 {
		t.Errorf("%d of 10000 hostile names are shown as they are", shown)
	}
	for _, screen := range screens {
		p.at(screen)
		p.until("has its answers", func() bool { return eval[bool](p, `!document.querySelector("main [aria-busy]")`) })
		p.until("is no crash", func() bool { return !strings.Contains(p.text(), "has a fault") })
	}
	if ran := eval[int](p, `window.ran`); ran != 0 {
		t.Errorf("%d values ran", ran)
	}
	if n := eval[int](p, `window.violations`); n != 0 {
		t.Errorf("the page broke its own rules of content %d times", n)
	}
	lock.Lock()
	defer lock.Unlock()
	if len(elsewhere) > 0 {
		t.Errorf("requests for other hosts: %v", elsewhere)
	}
}

// The page's rules of content hold: no inline script runs, no markup is set from a string, and no
// other host is reached.
func TestTheRulesOfContentHold(t *testing.T) {
	p := open(t, stack.Token)
	for name, script := range map[string]string{
		"an inline script ran": `window.ran = 0; (() => { const s = document.createElement("script")
			try { s.text = "window.ran = 1" } catch { return false }
			document.head.append(s); return window.ran === 1 })()`,
		"markup was set from a string": `(() => { try { document.body.innerHTML += ""; return true } catch { return false } })()`,
		"a string was evaluated":       `(() => { try { return !!setTimeout("window.ran = 1") } catch { return false } })()`,
		"another host was asked":       fmt.Sprintf(`fetch(%q).then(() => true, () => false)`, stack.Envoy+"/abc"),
	} {
		if eval[bool](p, script) {
			t.Error(name)
		}
	}
}
