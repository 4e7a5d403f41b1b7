// Command speed measures how soon the console shows its screens with ten thousand policies and a
// thousand nodes. It runs in test/console, on the results of `make build`.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"net/http"
	"os"
	"slices"
	"time"

	"github.com/chromedp/chromedp"

	console "github.com/weir-proxy/weir/test/console"
)

// screens has the address of each screen, and an element that it shows once it has its answers.
var screens = []struct{ name, hash, ready string }{
	{"Overview", "", "main .tiles"},
	{"Policies", "policies", "main .table a"},
	{"one policy", "policies/p-50", "main dd"},
	{"Nodes", "nodes", "main .table"},
	{"Changes", "changes", "main .table"},
	{"Callers", "callers", "main h1"},
}

func main() {
	policies := flag.Int("policies", 10_000, "how many policies there are")
	nodes := flag.Int("nodes", 1000, "how many nodes there are")
	rounds := flag.Int("rounds", 5, "how often each screen is loaded")
	flag.Parse()
	if err := run(*policies, *nodes, *rounds); err != nil {
		fmt.Fprintln(os.Stderr, "speed:", err)
		os.Exit(1)
	}
}

func run(policies, nodes, rounds int) error {
	ctx, cancel := context.WithTimeout(context.Background(), 8*time.Minute)
	defer cancel()
	dir, err := os.MkdirTemp("", "weir-speed")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	stack, err := console.StartStack(dir)
	if err != nil {
		return err
	}
	defer stack.Stop()
	version, err := fill(stack, policies)
	if err != nil {
		return err
	}
	for i := range nodes {
		if err := poll(stack, i, version); err != nil {
			return err
		}
	}
	tab, end := console.Browser(ctx)
	defer end()
	if err := chromedp.Run(tab, chromedp.EmulateViewport(1440, 900), console.LogIn(stack.Console, stack.Token)); err != nil {
		return err
	}
	fmt.Printf("%d policies, %d nodes, median of %d loads in ms\n", policies, nodes, rounds)
	fmt.Printf("%-12s %12s %14s\n", "screen", "first paint", "with answers")
	for _, s := range screens {
		painted, shown, err := load(tab, stack.Console+"/console?"+s.name+"#/"+s.hash, s.ready, rounds)
		if err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
		fmt.Printf("%-12s %12.0f %14.0f\n", s.name, painted, shown)
	}
	return nil
}

// fill puts a set of n policies into force.
func fill(stack *console.Stack, n int) (version uint64, err error) {
	type policy map[string]any
	set := map[string]any{"version": "weir/v1"}
	var all []policy
	for i := range n {
		all = append(all, policy{"name": fmt.Sprintf("p-%d", i), "partition": []string{"method"},
			"limit": policy{"quota": 100 + i, "window": "1m"}})
	}
	set["policies"] = all
	body, err := json.Marshal(set)
	if err != nil {
		return 0, err
	}
	answer, err := stack.Call(http.MethodPut, "/v1/policyset", string(body))
	if err != nil {
		return 0, err
	}
	var made struct{ Version uint64 }
	return made.Version, json.Unmarshal([]byte(answer), &made)
}

// poll asks for policies as a node does that has a version.
func poll(stack *console.Stack, i int, version uint64) error {
	url := fmt.Sprintf("%s/node/v1/snapshot?after=%d&node=edge-%d&boot=%016x&applied=%[2]d&wait=0s", stack.Console, version, i, i+1)
	r, err := http.NewRequest(http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	r.Header.Set("Authorization", "Bearer "+stack.Node)
	w, err := http.DefaultClient.Do(r)
	if err != nil {
		return err
	}
	w.Body.Close()
	if w.StatusCode >= http.StatusBadRequest {
		return fmt.Errorf("a node's poll is answered %s", w.Status)
	}
	return nil
}

// load opens an address anew several times, and returns the medians of when something was painted
// and when the screen had its answers, in milliseconds from the navigation.
func load(tab context.Context, url, ready string, rounds int) (painted, shown float64, err error) {
	var first, last []float64
	for range rounds {
		var at struct{ Painted, Shown float64 }
		err := chromedp.Run(tab,
			chromedp.Navigate("about:blank"), chromedp.Navigate(url), chromedp.WaitVisible(ready, chromedp.ByQuery),
			chromedp.Evaluate(`({shown: performance.now(),
				painted: performance.getEntriesByName("first-contentful-paint")[0]?.startTime ?? performance.now()})`, &at))
		if err != nil {
			return 0, 0, err
		}
		first, last = append(first, at.Painted), append(last, at.Shown)
	}
	slices.Sort(first)
	slices.Sort(last)
	return first[rounds/2], last[rounds/2], nil
}
