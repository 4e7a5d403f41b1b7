// Command site lays out the manual for the generator of the static site: it copies the pages into
// one folder and turns links to other files of the repository into links to its home.
package main

import (
	"flag"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
)

// home is where files that are no pages of the site are read.
const home = "https://github.com/weir-proxy/weir/blob/main/"

// pages are the pages outside of docs, by their names on the site.
var pages = map[string]string{
	"README.md": "readme.md", "RATIONALE.md": "rationale.md", "CONTRIBUTING.md": "contributing.md",
	"SECURITY.md": "security.md", "CHANGELOG.md": "changelog.md", mapPage: "index.md",
}

// mapPage is the map of the manual. The site's contents follow it.
const mapPage = "docs/README.md"

func main() {
	flag.Usage = func() {
		fmt.Fprint(flag.CommandLine.Output(), `usage: site REPOSITORY FOLDER

Lays the pages of the manual in REPOSITORY out in FOLDER, for Sphinx. It empties FOLDER first.
`)
	}
	flag.Parse()
	if flag.NArg() != 2 {
		flag.Usage()
		os.Exit(2)
	}
	if err := layOut(flag.Arg(0), flag.Arg(1)); err != nil {
		fmt.Fprintln(os.Stderr, "site:", err)
		os.Exit(1)
	}
}

// layOut lays the pages of a repository out in a folder, which it empties first.
func layOut(repository, folder string) error {
	if err := os.RemoveAll(folder); err != nil {
		return err
	}
	files := []string{}
	for page := range pages {
		files = append(files, page)
	}
	for _, pattern := range []string{"docs/*/*.md", "docs/*/*.svg", "docs/*/*/*.png"} {
		found, err := filepath.Glob(filepath.Join(repository, pattern))
		if err != nil {
			return err
		}
		for _, file := range found {
			name, err := filepath.Rel(repository, file)
			if err != nil {
				return err
			}
			files = append(files, name)
		}
	}
	for _, file := range files {
		if err := layFile(repository, folder, file); err != nil {
			return err
		}
	}
	return nil
}

// layFile copies a file to its place on the site, and turns the links of a page.
func layFile(repository, folder, file string) error {
	content, err := os.ReadFile(filepath.Join(repository, file))
	if err != nil {
		return err
	}
	if path.Ext(file) == ".md" {
		text, err := turnLinks(repository, file, string(content))
		if err != nil {
			return err
		}
		if file == mapPage {
			text += contentsOf(text)
		}
		content = []byte(text)
	}
	to := filepath.Join(folder, placeOf(file))
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	return os.WriteFile(to, content, 0o644)
}

// placeOf returns the place of a file on the site; empty if it has none.
func placeOf(file string) string {
	if name := pages[file]; name != "" {
		return name
	}
	name, inside := strings.CutPrefix(file, "docs/")
	if !inside {
		return ""
	}
	switch path.Ext(file) {
	case ".md", ".svg", ".png":
		return name
	}
	return ""
}

// link finds the target of a link without its anchor.
var link = regexp.MustCompile(`\]\(([^)#\s]+)(#[^)\s]*)?\)`)

// turnLinks turns the links of a page: to the place of a file on the site, or to the file in the
// repository on the web if the site does not have it.
func turnLinks(repository, page, text string) (turned string, err error) {
	turned = link.ReplaceAllStringFunc(text, func(found string) string {
		parts := link.FindStringSubmatch(found)
		target, anchor := parts[1], parts[2]
		if strings.Contains(target, "://") || strings.HasPrefix(target, "mailto:") {
			return found
		}
		file := path.Join(path.Dir(page), target)
		if _, missing := os.Stat(filepath.Join(repository, file)); missing != nil {
			err = fmt.Errorf("%s: cannot find the target of a link: %w; correct the link", page, missing)
		}
		if on := placeOf(file); on != "" {
			return "](" + relativePath(placeOf(page), on) + anchor + ")"
		}
		return "](" + home + file + anchor + ")"
	})
	return turned, err
}

// relativePath returns the way from a page of the site to a place on it.
func relativePath(page, to string) string {
	return strings.Repeat("../", strings.Count(page, "/")) + to
}

// contentsOf returns the site's contents, as Sphinx reads them: for each section of the map the
// pages to which its links lead, each page once.
func contentsOf(text string) string {
	var b strings.Builder
	seen := map[string]bool{}
	for _, section := range strings.Split(text, "\n## ")[1:] {
		caption, rest, _ := strings.Cut(section, "\n")
		fmt.Fprintf(&b, "\n```{toctree}\n:caption: %s\n:hidden:\n\n", caption)
		for _, found := range link.FindAllStringSubmatch(rest, -1) {
			if page := strings.TrimSuffix(found[1], ".md"); page != found[1] && !seen[page] {
				seen[page] = true
				b.WriteString(page + "\n")
			}
		}
		b.WriteString("```\n")
	}
	return b.String()
}
