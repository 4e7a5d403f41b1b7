package console

import (
	"encoding/json"
	"fmt"
	"testing"

	"github.com/chromedp/chromedp"
)

// rowsShown are the first cells of a table's rows, and how many rows it says that there are.
const rowsShown = `({
	names: [...document.querySelectorAll("main .table [role=rowgroup]:not(.head) [role=row]")].map(r => r.firstChild.textContent),
	count: Number(document.querySelector("main .table")?.ariaRowCount ?? 1) - 1,
})`

type rows struct {
	Names []string
	Count int
}

// The server filters the lists of policies and nodes. The page asks it a moment after the last key,
// and loads only the pages that are looked at.
func TestTheServerFiltersTheLists(t *testing.T) {
	const many = 2500
	before := current(t)
	if _, err := stack.Call("PUT", "/v1/policyset", setOf(t, many)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if _, err := stack.Call("POST", fmt.Sprintf("/v1/versions/%d/rollback", before), ""); err != nil {
			t.Error(err)
		}
	})
	p := open(t, stack.Token)
	asked := func(part string) int {
		return eval[int](p, fmt.Sprintf(`performance.getEntriesByType("resource").filter(e => e.name.includes(%q)).length`, part))
	}
	p.at("policies")
	p.until("lists them all", func() bool { return eval[rows](p, rowsShown).Count == many })
	if n := asked("/v1/policies?"); n != 1 {
		t.Errorf("for the beginning of the list the page made %d calls", n)
	}
	p.do(chromedp.Evaluate(`document.querySelector(".table.virtual").scrollTop = 1e9`, nil))
	p.until("shows the last policy", func() bool {
		names := eval[rows](p, rowsShown).Names
		return len(names) > 0 && names[len(names)-1] == fmt.Sprint("p-", many-1)
	})
	p.do(chromedp.SendKeys(`main input[type="search"]`, "P-249", chromedp.ByQuery))
	p.until("has the policies with that name", func() bool { return eval[rows](p, rowsShown).Count == 11 })
	if asked("search=P-249") == 0 || asked("search=P&")+asked("search=P-2&") > 1 {
		t.Error("the page does not ask the server, or asks for each key")
	}
	choose := func(label, value string) {
		p.do(chromedp.SetValue(fmt.Sprintf(`select[aria-label=%q]`, label), value, chromedp.ByQuery),
			chromedp.Evaluate(fmt.Sprintf(`document.querySelector('select[aria-label=%q]').dispatchEvent(new Event("change", {bubbles: true}))`, label), nil))
	}
	choose("State", "shadow")
	p.until("has the one in shadow", func() bool {
		names := eval[rows](p, rowsShown).Names
		return len(names) == 1 && names[0] == "p-2490"
	})
	choose("State", "off")
	p.sees("No policy is like this.")

	p.at("nodes")
	p.sees("1 node active, all up to date, none on the failure ladder")
	p.until("lists the node", func() bool { return eval[rows](p, rowsShown).Count == 1 })
	choose("Which nodes", "fallen")
	p.sees("No node is like this.")
	if asked("fallen=true") == 0 {
		t.Error("the page does not ask the server for nodes on the failure ladder")
	}
}

// setOf returns a policy set of n policies, of which every hundredth from the ninetieth is in
// shadow.
func setOf(t *testing.T, n int) string {
	t.Helper()
	var all []map[string]any
	for i := range n {
		one := map[string]any{"name": fmt.Sprint("p-", i), "partition": []string{},
			"limit": map[string]any{"quota": 100 + i, "window": "1m"}, "match": map[string]any{"paths": []string{"/nowhere"}}}
		if i%100 == 90 {
			one["enforcement"] = "shadow"
		}
		all = append(all, one)
	}
	body, err := json.Marshal(map[string]any{"version": "weir/v1", "policies": all})
	if err != nil {
		t.Fatal(err)
	}
	return string(body)
}
