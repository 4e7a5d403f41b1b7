package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Links lead to pages of the site, or to the repository's home; a dead one is an error.
func TestLinksAreTurned(t *testing.T) {
	for _, c := range []struct{ page, text, want string }{
		{"docs/run/redis.md", "[a](regions.md#x)", "[a](../run/regions.md#x)"},
		{"docs/run/redis.md", "[a](../../RATIONALE.md) [b](../README.md)", "[a](../rationale.md) [b](../index.md)"},
		{"docs/night/console.md", "![a](console/nodes-dark.png)", "![a](../night/console/nodes-dark.png)"},
		{"README.md", "[a](docs/run/redis.md#y), [b](envoy.yaml)", "[a](run/redis.md#y), [b](" + home + "envoy.yaml)"},
		{"docs/integrate/api.md", "[a](../../api/openapi.yaml)", "[a](" + home + "api/openapi.yaml)"},
		{"docs/integrate/api.md", "[a](#here) [b](https://example.com/)", "[a](#here) [b](https://example.com/)"},
	} {
		got, err := turnLinks("../..", c.page, c.text)
		if got != c.want || err != nil {
			t.Errorf("%s: %s becomes %s, %v; want %s", c.page, c.text, got, err, c.want)
		}
	}
	if _, err := turnLinks("../..", "docs/integrate/api.md", "[a](nowhere.md)"); err == nil {
		t.Error("a dead link is none")
	}
}

// Every page of the repository is laid out.
func TestPagesAreLaidOut(t *testing.T) {
	folder := filepath.Join(t.TempDir(), "pages")
	if err := layOut("../..", folder); err != nil {
		t.Fatal(err)
	}
	content, err := os.ReadFile(filepath.Join(folder, "index.md"))
	if err != nil || !strings.Contains(string(content), "](rationale.md)") {
		t.Errorf("%v, %s", err, content)
	}
	sources, err := filepath.Glob("../../docs/*/*.md")
	if err != nil {
		t.Fatal(err)
	}
	laid, err := filepath.Glob(filepath.Join(folder, "*/*.md"))
	if want := len(sources); want < 30 || err != nil || len(laid) != want {
		t.Errorf("%d pages, want %d, %v", len(laid), want, err)
	}
	top, err := filepath.Glob(filepath.Join(folder, "*.md"))
	if want := len(pages); err != nil || len(top) != want {
		t.Errorf("%v at the top, want %d pages, %v", top, want, err)
	}
}

// The site's contents follow the map: a page stands under the first section that leads to it.
func TestContentsFollowTheMap(t *testing.T) {
	const text = "# The manual\n\n## Start\n[a](one.md), [b](two.md#x)\n\n## Run it\n" +
		"[b](two.md) [c](three.md) [d](x.svg)\n"
	const want = "\n```{toctree}\n:caption: Start\n:hidden:\n\none\ntwo\n```\n" +
		"\n```{toctree}\n:caption: Run it\n:hidden:\n\nthree\n```\n"
	if got := contentsOf(text); got != want {
		t.Errorf("%q, want %q", got, want)
	}
}
