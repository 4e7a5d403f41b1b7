package console

import (
	"fmt"
	"testing"

	"github.com/chromedp/chromedp"
)

// Every screen can be read on a small telephone, a laptop and a large monitor: nothing is cut off,
// stands outside the window or is smaller than small print.
func TestScreensAreReadableAtEveryWidth(t *testing.T) {
	p := open(t, stack.Token)
	for _, width := range []int64{360, 1280, 1920} {
		p.do(chromedp.EmulateViewport(width, 900))
		for _, screen := range screens {
			p.at(screen)
			p.until("has its answers", func() bool { return eval[bool](p, `!document.querySelector("main [aria-busy]")`) })
			p.isReadable(fmt.Sprintf("#/%s, %d pixels", screen, width), width)
		}
		p.at("explain")
		p.do(chromedp.WaitVisible(`main form button`, chromedp.ByQuery), chromedp.Click(`main form button`, chromedp.ByQuery))
		p.sees("Policies that it does not meet")
		p.isReadable(fmt.Sprintf("an explanation, %d pixels", width), width)
	}
}

func (p *page) isReadable(what string, width int64) {
	p.t.Helper()
	if wide := eval[int64](p, `document.documentElement.scrollWidth`); wide > width {
		p.t.Errorf("%s: the page is %d pixels wide", what, wide)
	}
	if found := eval[string](p, unreadable); found != "" {
		p.t.Errorf("%s:\n%s", what, found)
	}
}

// unreadable names the texts that are cut off, where no pointer can show them whole, that stand
// outside the window with no way to scroll there, or that are smaller than 11 pixels. A text that
// its cell clips inside the window does not stand outside: it is cut off.
const unreadable = `(() => {
	const found = []
	const name = e => "  <" + e.tagName.toLowerCase() + " class=" + e.className + "> " + e.textContent.trim().slice(0, 60)
	const scrolls = e => { for (e = e.parentElement; e; e = e.parentElement)
		if (/auto|scroll/.test(getComputedStyle(e).overflowX)) return true
		return false }
	const clips = e => { for (e = e.parentElement; e && e !== document.body; e = e.parentElement)
		if (/hidden|clip/.test(getComputedStyle(e).overflowX)) return e.getBoundingClientRect().right <= innerWidth + 1
		return false }
	for (const e of document.body.querySelectorAll("*")) {
		const own = [...e.childNodes].some(n => n.nodeType === 3 && n.textContent.trim())
		const box = e.getBoundingClientRect(), style = getComputedStyle(e)
		if (!own || box.width < 2 || box.height < 2 || style.visibility === "hidden" || e.closest("svg")) continue
		if (parseFloat(style.fontSize) < 11) found.push("small, " + style.fontSize + name(e))
		if ((box.right > innerWidth + 1 || box.left < -1) && !scrolls(e) && !clips(e)) found.push("outside" + name(e))
		for (let h = e; h && h !== document.body; h = h.parentElement)
			if (/hidden|clip/.test(getComputedStyle(h).overflowX) && h.scrollWidth > h.clientWidth + 1 && !(e.closest("[title]") && innerWidth > 820)) {
				found.push("cut off" + name(e)); break }
	}
	return found.join("\n")
})()`
