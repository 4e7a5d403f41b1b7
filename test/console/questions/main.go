// Command questions measures how long the console takes to answer an operator's questions in an
// incident, while a load goes through Envoy to the policies in question. A headless Chromium
// clicks, and types into the dialogs. It runs in test/console, on the results of `make build`.
package main

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/chromedp/chromedp"

	console "github.com/weir-proxy/weir/test/console"
)

// warm is for how long the load goes on before the first question.
const warm = 10 * time.Second

// bar is the time within which each question must be answered.
const bar = 2 * time.Second

func main() {
	rate := flag.Float64("rate", 5000, "requests a second")
	rounds := flag.Int("rounds", 5, "how often each question is asked")
	wait := flag.Bool("wait", true, "wait until callers have been counted, at most six minutes, and ask about other limits, too")
	flag.Parse()
	if err := run(*rate, *rounds, *wait); err != nil {
		fmt.Fprintln(os.Stderr, "questions:", err)
		os.Exit(1)
	}
}

// run asks each question in some rounds under the load. If wait is false, it leaves out questions
// that need counted callers.
func run(rate float64, rounds int, wait bool) error {
	ctx, cancel := context.WithTimeout(context.Background(), 15*time.Minute)
	defer cancel()
	dir, err := os.MkdirTemp("", "weir-questions")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	stack, err := console.StartStack(dir)
	if err != nil {
		return err
	}
	defer stack.Stop()
	asked := questions
	if wait {
		if err := awaitCallers(ctx, stack); err != nil {
			return err
		}
	} else {
		asked = slices.DeleteFunc(slices.Clone(asked), func(q question) bool { return q.needsCallers })
	}
	tab, end := console.Browser(ctx)
	defer end()
	if err := chromedp.Run(tab, chromedp.EmulateViewport(1440, 900), console.LogIn(stack.Console, stack.Token)); err != nil {
		return err
	}
	loading := beginLoad(ctx, stack, rate)
	time.Sleep(warm)
	took := map[string][]time.Duration{}
	for round := range rounds {
		for _, q := range asked {
			t, err := q.ask(tab, stack, round)
			if err != nil {
				loading.endLoad()
				return fmt.Errorf("%s: %w", q.name, err)
			}
			took[q.name] = append(took[q.name], t)
		}
	}
	outcome, err := loading.endLoad()
	if err != nil {
		return err
	}
	fmt.Println(outcome)
	report(asked, took, rounds)
	return nil
}

// awaitCallers sends few requests until it is known how much callers use.
func awaitCallers(ctx context.Context, stack *console.Stack) error {
	few, enough := context.WithCancel(ctx)
	defer enough()
	go stack.Load(few, 50)
	fmt.Println("waiting until callers have been counted, six minutes at most")
	for range 360 {
		got, err := stack.Call("GET", "/v1/policies/shorten-per-ip/distribution", "")
		if err != nil {
			return err
		}
		if !strings.Contains(got, `"callers":0`) {
			return nil
		}
		time.Sleep(time.Second)
	}
	return fmt.Errorf("no caller has been counted")
}

func report(asked []question, took map[string][]time.Duration, rounds int) {
	fmt.Printf("%d times each, in ms from the first click until the answer can be read\n", rounds)
	fmt.Printf("%-52s %8s %8s\n", "question", "median", "slowest")
	for _, q := range asked {
		all := took[q.name]
		slices.Sort(all)
		median, slowest := all[len(all)/2], all[len(all)-1]
		fmt.Printf("%-52s %8d %8d%s\n", q.name, median.Milliseconds(), slowest.Milliseconds(),
			map[bool]string{true: fmt.Sprintf("  over %s", bar)}[slowest > bar])
	}
}

// question is an operator's question, with the clicks that answer it.
type question struct {
	name string
	// needsCallers is true if the answer needs callers that have been counted.
	needsCallers bool
	// before runs before the clock starts, clicks run from the first click to the answer, and after
	// takes the change back.
	before func(*console.Stack, int) chromedp.Tasks
	clicks func(int) chromedp.Tasks
	after  chromedp.Tasks
}

func (q question) ask(tab context.Context, stack *console.Stack, round int) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(tab, time.Minute)
	defer cancel()
	elsewhere := chromedp.Tasks{click("a", "Settings"), reads("main h1", "Settings")}
	before := chromedp.Tasks{}
	if q.before != nil {
		before = q.before(stack, round)
	}
	if err := chromedp.Run(ctx, elsewhere, before); err != nil {
		return 0, err
	}
	begin := time.Now()
	if err := chromedp.Run(ctx, q.clicks(round)); err != nil {
		return 0, err
	}
	took := time.Since(begin)
	return took, chromedp.Run(ctx, q.after)
}

// click clicks on the element with a text or a label.
func click(element, name string) chromedp.Action {
	return chromedp.Click(console.Named(element, name), chromedp.BySearch)
}

// reads waits until an element has a text.
func reads(selector, text string) chromedp.Action {
	return holds(fmt.Sprintf(`[...document.querySelectorAll(%q)].some(e => e.textContent.includes(%q))`, selector, text))
}

func holds(expression string) chromedp.Action {
	return chromedp.Poll(expression, nil, chromedp.WithPollingInterval(10*time.Millisecond))
}

func fill(name, text string) chromedp.Action {
	return chromedp.SendKeys(fmt.Sprintf("dialog [name=%q]", cmp.Or(name, "reason")), text, chromedp.ByQuery)
}
