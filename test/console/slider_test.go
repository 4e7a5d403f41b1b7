package console

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
)

// spanWaits is for how many seconds at most a test waits until callers have been counted.
const spanWaits = 330

// The slider shows whom a different limit would catch, and the keyboard moves it. One button
// changes the limit, after the server has described the change; a second button undoes it.
func TestTheSliderShowsWhatAnotherLimitWouldDo(t *testing.T) {
	p := open(t, stack.Token)
	p.at("policies/shorten-per-ip")
	for range spanWaits { // until a span of five minutes has ended
		if strings.Contains(p.text(), "callers would be caught") {
			break
		}
		time.Sleep(time.Second)
	}
	p.sees("callers would be caught")
	before := eval[int](p, `Number(document.querySelector(".slider [type=number]").value)`)
	p.do(chromedp.Focus(`#another-limit`, chromedp.ByQuery))
	for range 60 {
		p.do(chromedp.KeyEvent(kb.ArrowLeft))
	}
	after := eval[int](p, `Number(document.querySelector(".slider [type=number]").value)`)
	if after >= before {
		t.Fatalf("the left arrow moved the limit from %d to %d", before, after)
	}
	p.sees("callers would be caught")
	p.click("button", fmt.Sprint("Change to ", after, " …"))
	p.sees(fmt.Sprintf("shorten-per-ip: limit %d per 1h → %d per 1h", before, after))
	quota := func(want int) func() bool {
		return func() bool {
			got, err := stack.Call("GET", "/v1/policies/shorten-per-ip", "")
			return err == nil && strings.Contains(got, fmt.Sprintf(`"quota":%d,`, want))
		}
	}
	p.click("button", "Apply")
	p.sees("is in force.")
	p.until("has changed it", quota(after))
	p.click("button", "Undo")
	p.until("has undone it", quota(before))

	version := current(t)
	p.click("button", fmt.Sprint("Change to ", after, " …"))
	printed := eval[string](p, `document.querySelector('dialog pre[aria-label="Command"]').textContent`)
	p.click("button", "Cancel")
	runPrinted(t, printed)
	p.until("is changed by the printed command", quota(after))
	if _, err := stack.Call("POST", fmt.Sprintf("/v1/versions/%d/rollback", version), ""); err != nil {
		t.Fatal(err)
	}
}
