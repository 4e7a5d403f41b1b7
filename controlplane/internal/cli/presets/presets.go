// Package presets has policy sets to begin with, one for each usual kind of service.
package presets

import (
	"embed"
	"io/fs"
	"slices"
	"strings"
)

//go:embed *.yaml
var files embed.FS

// Preset is a policy set to begin with.
type Preset struct {
	Name string
	// About says in a line which service it is for: the first comment of Text.
	About string
	// Text is the policy file, YAML with comments.
	Text string
}

// List returns the presets in the order of their names.
func List() (all []Preset) {
	names, err := fs.Glob(files, "*.yaml")
	if err != nil {
		panic("BUG: " + err.Error())
	}
	slices.Sort(names)
	for _, name := range names {
		text, err := files.ReadFile(name)
		if err != nil {
			panic("BUG: " + err.Error())
		}
		first, _, _ := strings.Cut(string(text), "\n")
		all = append(all, Preset{
			Name: strings.TrimSuffix(name, ".yaml"), About: strings.TrimPrefix(first, "# "), Text: string(text),
		})
	}
	return all
}
