package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
)

// papers are the files that each archive and each package has beside the program.
type papers struct {
	license, notices, changes, manual, envoyConfig []byte
	// completions are scripts, by their shells.
	completions map[string][]byte
	// module is the filter.
	module []byte
}

// readPapers reads the files of the tree, and asks a program for this machine for the others.
func readPapers(s settings) (p papers, err error) {
	for path, text := range map[string]*[]byte{"LICENSE": &p.license, "CHANGELOG.md": &p.changes, "envoy.yaml": &p.envoyConfig} {
		if *text, err = os.ReadFile(filepath.Join(s.Root, path)); err != nil {
			return p, err
		}
	}
	if p.module, err = os.ReadFile(s.Module); err != nil {
		return p, fmt.Errorf("cannot read the filter: %w; make wasm makes it", err)
	}
	if p.notices, err = noticesOf(s.Root, s.Platforms); err != nil {
		return p, err
	}
	// Ask the program.
	dir, err := os.MkdirTemp("", "weir-papers-")
	if err != nil {
		return p, err
	}
	defer os.RemoveAll(dir)
	program := filepath.Join(dir, "weir")
	if err := compile(s.Root, s.Version, runtime.GOOS+"/"+runtime.GOARCH, program); err != nil {
		return p, err
	}
	if p.manual, err = exec.Command(program, "manual").Output(); err != nil {
		return p, fmt.Errorf("cannot make the manual: %w", err)
	}
	p.completions = map[string][]byte{}
	for _, shell := range []string{"bash", "zsh", "fish"} {
		if p.completions[shell], err = exec.Command(program, "completion", shell).Output(); err != nil {
			return p, fmt.Errorf("cannot make the completion for %s: %w", shell, err)
		}
	}
	return p, nil
}
