// Package manual looks at the manual's site in a browser.
package manual

import (
	"context"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/chromedp"

	"github.com/weir-proxy/weir/test/console"
)

const site = "../../../build/site"

// Every page can be read on a telephone and on a large window: none is wider than the screen, and
// nothing is loaded from elsewhere. The search finds a page by its words.
func TestTheManualIsReadable(t *testing.T) {
	pages, err := filepath.Glob(site + "/*/*.html")
	if err != nil || len(pages) < 30 {
		t.Fatalf("%d pages, %v: run `make site`", len(pages), err)
	}
	pages = append(pages, site+"/index.html", site+"/readme.html", site+"/rationale.html", site+"/contributing.html")
	server := httptest.NewServer(http.FileServer(http.Dir(site)))
	defer server.Close()
	ctx, end := console.Browser(t.Context())
	defer end()
	ctx, cancel := context.WithTimeout(ctx, 10*time.Minute)
	defer cancel()
	var mu sync.Mutex
	outside := map[string]bool{}
	chromedp.ListenTarget(ctx, func(event any) {
		sent, is := event.(*network.EventRequestWillBeSent)
		if is && !strings.HasPrefix(sent.Request.URL, server.URL) && !strings.HasPrefix(sent.Request.URL, "data:") {
			mu.Lock()
			defer mu.Unlock()
			outside[sent.Request.URL] = true
		}
	})
	for _, page := range pages {
		page = strings.TrimPrefix(page, site+"/")
		for _, width := range []int64{360, 1280} {
			var wide int64
			err := chromedp.Run(ctx, network.Enable(), chromedp.EmulateViewport(width, 900),
				chromedp.Navigate(server.URL+"/"+page),
				chromedp.Evaluate(`document.documentElement.scrollWidth`, &wide))
			if err != nil {
				t.Fatalf("%s: %v", page, err)
			}
			if wide > width {
				t.Errorf("%s is %d pixels wide in a window of %d", page, wide, width)
			}
		}
	}
	var found string
	err = chromedp.Run(ctx, chromedp.Navigate(server.URL+"/search.html?q=failure+ladder"),
		chromedp.WaitVisible("#search-results li a", chromedp.ByQuery),
		chromedp.Text("#search-results", &found, chromedp.ByQuery))
	if err != nil || !strings.Contains(found, "The failure ladder") {
		t.Errorf("the search for the failure ladder finds %q, %v", found, err)
	}
	mu.Lock()
	defer mu.Unlock()
	for url := range outside {
		t.Errorf("the site loads %s", url)
	}
	if shot := os.Getenv("WEIR_SHOT"); shot != "" {
		var picture []byte
		err := chromedp.Run(ctx, chromedp.EmulateViewport(360, 900), chromedp.Navigate(server.URL+"/choose/policies.html"),
			chromedp.CaptureScreenshot(&picture))
		if err == nil {
			err = os.WriteFile(shot, picture, 0o644)
		}
		if err != nil {
			t.Error(err)
		}
	}
}
