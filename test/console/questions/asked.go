package main

import (
	"context"
	"fmt"

	"github.com/chromedp/chromedp"

	console "github.com/weir-proxy/weir/test/console"
)

// questions are the six that the overview is for. The fifth is about a policy, and about a caller.
var questions = []question{
	{name: "is the limiter the cause?", clicks: func(int) chromedp.Tasks {
		return chromedp.Tasks{click("a", "Overview"), reads(".tile .note", "of 1 active node"),
			holds(`/[1-9]/.test(document.querySelector(".tile .value")?.textContent ?? "")`),
			holds(`[...document.querySelectorAll("[aria-label=Policies] b")].some(b => /[1-9]/.test(b.textContent))`)}
	}},
	{name: "what changed?", before: change, clicks: func(round int) chromedp.Tasks {
		said := fmt.Sprintf("→ %d per 1m", 6+round)
		return chromedp.Tasks{click("a", "Overview"), holds(`document.querySelector(".graph a.mark") !== null`),
			reads("main [aria-label=Audit] [role=cell]", said), click("a", "Changes"), reads("main [aria-label=Versions] a", "(now)"),
			chromedp.Click(`main [aria-label=Versions] [role=rowgroup]:not(.head) a`, chromedp.ByQuery), reads(".words li", said)}
	}},
	{name: "who is hit, and why?", clicks: func(int) chromedp.Tasks {
		return chromedp.Tasks{click("a", "Overview"), chromedp.Click(`a[title="Why?"]`, chromedp.ByQuery),
			reads("main [aria-label=Refusals] [role=cell]", "the quota was used up")}
	}},
	{name: "what would another limit do?", needsCallers: true, clicks: func(int) chromedp.Tasks {
		return chromedp.Tasks{click("a", "Policies"), click("a", "shorten-per-ip"), reads(".caught", "would be caught"),
			middle("#another-limit"), holds(`document.querySelector(".caught").textContent === "…"`),
			reads(".caught", "would be caught")}
	}},
	{name: "make this policy stop", clicks: func(int) chromedp.Tasks {
		return chromedp.Tasks{click("a", "Overview"), click("button", "Set resolve-per-ip to shadow"),
			fill("reason", "it refuses all checkouts"), click("button", "Set to shadow"), reads(".toast", "is in shadow.")}
	}, after: undone},
	{name: "give this caller another limit", clicks: func(int) chromedp.Tasks {
		return chromedp.Tasks{chromedp.SendKeys(`header input[type="search"]`, "key-of-bob\r", chromedp.ByQuery),
			click("button", "Another limit"), fill("reason", "launch week"), click("button", "Give this limit"),
			reads("main dd", "1000 per 1m launch week")}
	}, after: undone},
	{name: "did it arrive?", before: order, clicks: func(int) chromedp.Tasks {
		return chromedp.Tasks{click("a", "Overview"), reads(".card", "obeyed by 1 of 1 node"),
			reads("[aria-label='Orders in force'] [role=cell]", "did it arrive")}
	}, after: chromedp.Tasks{click("button", "Lift the order about resolve-per-ip"), click("dialog//button", "Lift"), undoneNever}},
}

// undone takes back the last change.
var undone = chromedp.Tasks{click("button", "Undo"), chromedp.WaitNotPresent(".toast", chromedp.ByQuery)}

// undoneNever closes the message about the last change.
var undoneNever = chromedp.Tasks{click("button", "Close this message"), chromedp.WaitNotPresent(".toast", chromedp.ByQuery)}

// middle clicks into the middle of an element.
func middle(selector string) chromedp.Action {
	return chromedp.ActionFunc(func(ctx context.Context) error {
		var at struct{ X, Y float64 }
		find := fmt.Sprintf(`(() => { const b = document.querySelector(%q).getBoundingClientRect()
			return {x: b.x + b.width / 2, y: b.y + b.height / 2} })()`, selector)
		if err := chromedp.Evaluate(find, &at).Do(ctx); err != nil {
			return err
		}
		return chromedp.MouseClickXY(at.X, at.Y).Do(ctx)
	})
}

// call makes a REST call as someone else would.
func call(stack *console.Stack, method, path, body string) chromedp.Tasks {
	return chromedp.Tasks{chromedp.ActionFunc(func(context.Context) error {
		_, err := stack.Call(method, path, body)
		return err
	})}
}

func change(stack *console.Stack, round int) chromedp.Tasks {
	return call(stack, "PATCH", "/v1/policies/login", fmt.Sprintf(`{"limit": {"quota": %d}}`, 6+round))
}

func order(stack *console.Stack, _ int) chromedp.Tasks {
	return call(stack, "PUT", "/v1/enforcement",
		`{"orders": [{"state": "shadow", "policy": "resolve-per-ip", "reason": "did it arrive"}]}`)
}
