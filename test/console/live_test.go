package console

import (
	"testing"
)

// Changes of other operators show by themselves, because one request waits at the server. A page
// that loses the server asks again until it is back.
func TestThePageFollowsWhatOthersDo(t *testing.T) {
	p := open(t, stack.Token)
	p.sees("of 1 active node")
	const waits = `performance.getEntriesByType("resource").filter(e => e.name.includes("/v1/changes?")).length`
	p.until("waits for changes", func() bool { return eval[int](p, waits) > 0 })
	order := func(body string) {
		t.Helper()
		if _, err := stack.Call("PUT", "/v1/enforcement", body); err != nil {
			t.Fatal(err)
		}
	}
	order(`{"orders": [{"state": "shadow", "policy": "resolve-per-ip", "reason": "another operator"}]}`)
	p.sees("another operator")
	order(`{"orders": []}`)
	p.sees("None. A policy can be set to shadow above")
}
