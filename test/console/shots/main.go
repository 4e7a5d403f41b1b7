// Command shots makes the pictures of docs/night/console.md: every screen in both themes. It runs
// in test/console, on the results of `make build`.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"

	console "github.com/weir-proxy/weir/test/console"
)

type screen struct{ name, hash, ready string }

// screens are the pictures: a name, its address, and the element that must be there first.
var screens = []screen{
	{"overview", "", ".table a"},
	{"policies", "policies", ".table a"},
	{"policy", "policies/shorten-per-consumer", "dd"},
	{"callers", "callers", ".table"},
	{"nodes", "nodes", ".table"},
	{"changes", "changes/2", ".words"},
	{"settings", "settings", ".card"},
	{"edit", "edit", ".promises"},
}

func main() {
	into := flag.String("o", "../../docs/night/console", "the folder for the pictures")
	narrow := flag.Bool("narrow", false, "all screens as a telephone shows them, and not just the first")
	at := flag.String("console", "", "a control plane that runs, instead of one of its own")
	token := flag.String("token", "", "its token")
	load := flag.Duration("load", 20*time.Second, "how long to send requests first")
	flag.Parse()
	if err := run(*into, *at, *token, *load, *narrow); err != nil {
		fmt.Fprintln(os.Stderr, "shots:", err)
		os.Exit(1)
	}
}

func run(into, at, token string, load time.Duration, narrow bool) error {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	if at == "" {
		dir, err := os.MkdirTemp("", "weir-shots")
		if err != nil {
			return err
		}
		defer os.RemoveAll(dir)
		stack, err := console.StartStack(dir)
		if err != nil {
			return err
		}
		defer stack.Stop()
		if err := stack.Dress(); err != nil {
			return err
		}
		go stack.Load(ctx, 50)
		time.Sleep(load)
		at, token = stack.Console, stack.Token
	}
	if err := os.MkdirAll(into, 0o755); err != nil {
		return err
	}
	tab, end := console.Browser(ctx)
	defer end()
	if err := chromedp.Run(tab, chromedp.EmulateViewport(1440, 900), console.LogIn(at, token)); err != nil {
		return err
	}
	for _, theme := range []string{"light", "dark"} {
		if err := shoot(tab, at, into, theme, "", 1440, 900, screens); err != nil {
			return err
		}
		if narrow || theme == "light" {
			shown := screens
			if !narrow {
				shown = screens[:1]
			}
			if err := shoot(tab, at, into, theme, "-narrow", 390, 844, shown); err != nil {
				return err
			}
		}
	}
	return nil
}

func shoot(tab context.Context, at, into, theme, suffix string, width, height int64, screens []screen) error {
	set := emulation.SetEmulatedMedia().WithFeatures([]*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: theme}})
	if err := chromedp.Run(tab, set, chromedp.EmulateViewport(width, height)); err != nil {
		return err
	}
	for _, s := range screens {
		var picture []byte
		err := chromedp.Run(tab,
			chromedp.Navigate(at+"/console#/"+s.hash),
			chromedp.WaitVisible("main "+s.ready, chromedp.ByQuery),
			chromedp.Sleep(1500*time.Millisecond), // for the answers after the first
			chromedp.CaptureScreenshot(&picture))
		if err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
		if err := os.WriteFile(filepath.Join(into, s.name+"-"+theme+suffix+".png"), picture, 0o644); err != nil {
			return err
		}
	}
	return nil
}
