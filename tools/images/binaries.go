package main

import (
	"debug/buildinfo"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// compile builds the control plane for a platform like linux/arm64. The result depends on the
// sources, the version and the version of Go alone.
func compile(root, version, platform, output string) error {
	system, architecture, ok := strings.Cut(platform, "/")
	if !ok {
		return fmt.Errorf("platform %q: say it like linux/amd64", platform)
	}
	absolute, err := filepath.Abs(output)
	if err != nil {
		return err
	}
	command := exec.Command("go", "build", "-buildvcs=false", "-trimpath", "-ldflags", "-s -w -X main.version="+version,
		"-o", absolute, ".")
	command.Dir = root
	command.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS="+system, "GOARCH="+architecture, "GOAMD64=v1", "GOARM64=v8.0")
	if text, err := command.CombinedOutput(); err != nil {
		return fmt.Errorf("building weir for %s: %w\n%s", platform, err, text)
	}
	return nil
}

// A component is a Go module that is part of a binary.
type component struct{ Path, Version string }

// ofBinary lists the modules that a Go binary says it was built from.
func ofBinary(path string) (goVersion string, all []component, err error) {
	info, err := buildinfo.ReadFile(path)
	if err != nil {
		return "", nil, err
	}
	for _, d := range info.Deps {
		if d.Replace != nil {
			d = d.Replace
		}
		all = append(all, component{d.Path, d.Version})
	}
	return info.GoVersion, all, nil
}

// ofFilter lists the modules that the filter is built from: TinyGo leaves nothing of them in it.
func ofFilter(root string) (all []component, err error) {
	const format = "{{with .Module}}{{if not .Main}}{{.Path}} {{.Version}}{{end}}{{end}}"
	command := exec.Command("go", "list", "-deps", "-tags", "tinygo", "-f", format, "./filter")
	command.Dir = root
	command.Env = append(os.Environ(), "GOOS=wasip1", "GOARCH=wasm", "CGO_ENABLED=0")
	var complaints strings.Builder
	command.Stderr = &complaints
	output, err := command.Output()
	if err != nil {
		return nil, fmt.Errorf("cannot list the filter's modules: %w\n%s", err, &complaints)
	}
	for _, line := range strings.Split(string(output), "\n") {
		path, version, ok := strings.Cut(line, " ")
		c := component{path, version}
		if ok && !slices.Contains(all, c) {
			all = append(all, c)
		}
	}
	return all, nil
}
