package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// noticeFile is the name of a file with a license, or with a notice that a license asks to keep.
var noticeFile = regexp.MustCompile(`(?i)^(licen[cs]e|copying|notice|patents)([.-].*)?$`)

// A notice is the text of a dependency that its license asks to hand on.
type notice struct{ of, text string }

// noticesOf returns the notices of all that a release is built from: the libraries of the program
// on all platforms and of the filter, the standard libraries of both, and those of the console.
func noticesOf(root string, platforms []string) ([]byte, error) {
	modules, err := modulesOf(root, platforms)
	if err != nil {
		return nil, err
	}
	var all []notice
	for _, m := range modules {
		text, err := noticesIn(m.dir)
		if err != nil {
			return nil, fmt.Errorf("cannot read the license of %s: %w", m.name, err)
		}
		all = append(all, notice{m.name, text})
	}
	// The C library of the filter is a Debian package.
	text, err := os.ReadFile("/usr/share/doc/wasi-libc/copyright")
	if err != nil {
		return nil, fmt.Errorf("cannot read the license of the filter's C library: %w; tools/setup.sh build installs it", err)
	}
	all = append(all, notice{"wasi-libc", string(text)})
	slices.SortFunc(all, func(a, b notice) int { return strings.Compare(a.of, b.of) })
	// Write them one after the other, and the console's at the end.
	var out bytes.Buffer
	out.WriteString("Weir contains the work of others. Their licenses follow.\n")
	for _, n := range all {
		fmt.Fprintf(&out, "\n%s\n%s\n\n%s\n", strings.Repeat("=", 80), n.of, strings.TrimSpace(n.text))
	}
	console, err := os.ReadFile(filepath.Join(root, "console/notices.txt"))
	if err != nil {
		return nil, err
	}
	out.Write(console)
	return out.Bytes(), nil
}

// A moduleDir is a module with its version, and the folder with its files.
type moduleDir struct{ name, dir string }

// modulesOf returns the modules of the program and of the filter, and the two standard libraries.
func modulesOf(root string, platforms []string) (all []moduleDir, err error) {
	const format = "{{with .Module}}{{if not .Main}}{{.Path}} {{.Version}}|{{.Dir}}{{end}}{{end}}"
	list := func(dir string, env []string, args ...string) error {
		command := exec.Command("go", append([]string{"list"}, args...)...)
		command.Dir = filepath.Join(root, dir)
		command.Env = append(os.Environ(), append(env, "CGO_ENABLED=0")...)
		var complaints bytes.Buffer
		command.Stderr = &complaints
		output, err := command.Output()
		if err != nil {
			return fmt.Errorf("cannot list modules: %w\n%s", err, &complaints)
		}
		for line := range strings.Lines(string(output)) {
			name, dir, ok := strings.Cut(strings.TrimSpace(line), "|")
			if m := (moduleDir{name, dir}); ok && !slices.Contains(all, m) {
				all = append(all, m)
			}
		}
		return nil
	}
	// List the modules of the program for each platform, and of the filter.
	for _, platform := range platforms {
		system, architecture, _ := strings.Cut(platform, "/")
		env := []string{"GOOS=" + system, "GOARCH=" + architecture}
		if err := list(".", env, "-deps", "-f", format, "."); err != nil {
			return nil, err
		}
	}
	filter := []string{"GOOS=wasip1", "GOARCH=wasm"}
	if err := list(".", filter, "-deps", "-tags", "tinygo", "-f", format, "./filter"); err != nil {
		return nil, err
	}
	// Add TinyGo, whose library is in the filter, and Go, whose library is in both.
	if err := list("tools/tinygo", nil, "-m", "-f", "{{.Path}} {{.Version}}|{{.Dir}}", "github.com/tinygo-org/tinygo"); err != nil {
		return nil, err
	}
	// Add Envoy's interface, which the native host is compiled with.
	if err := list("tools/native", nil, "-m", "-f", "{{.Path}} {{.Version}}|{{.Dir}}", abiModule); err != nil {
		return nil, err
	}
	goRoot, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		return nil, err
	}
	return append(all, moduleDir{"Go", strings.TrimSpace(string(goRoot))}), nil
}

// noticesIn returns the texts of all licenses and notices of a folder.
func noticesIn(dir string) (string, error) {
	files, err := os.ReadDir(dir)
	if err != nil {
		return "", err
	}
	var texts []string
	for _, f := range files {
		if !noticeFile.MatchString(f.Name()) || f.IsDir() {
			continue
		}
		text, err := os.ReadFile(filepath.Join(dir, f.Name()))
		if err != nil {
			return "", err
		}
		texts = append(texts, strings.TrimSpace(string(text)))
	}
	if len(texts) == 0 {
		return "", fmt.Errorf("%s has no file with a license", dir)
	}
	return strings.Join(texts, "\n\n"), nil
}
