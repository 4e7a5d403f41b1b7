package main

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/sigstore/sigstore/pkg/signature"
)

// releasePlatforms are the platforms of the binaries.
var releasePlatforms = []string{"linux/amd64", "linux/arm64", "darwin/amd64", "darwin/arm64"}

// release writes all files of a release except the images: an archive with the binary for each
// platform, the filter, their SBOMs, notes, and the checksums of all files, signed if there is a
// signer.
func release(s settings, signer signature.Signer) error {
	if err := os.RemoveAll(s.Out); err != nil {
		return err
	}
	if err := os.MkdirAll(s.Out, 0o755); err != nil {
		return err
	}
	// Each file that is written gets a line in the checksums.
	var sums strings.Builder
	add := func(name string, content []byte) error {
		fmt.Fprintf(&sums, "%s  %s\n", sum(content), name)
		return os.WriteFile(filepath.Join(s.Out, name), content, 0o644)
	}
	// Write the binaries, the filter and the notes.
	for _, platform := range releasePlatforms {
		if err := addBinary(s, platform, add); err != nil {
			return err
		}
	}
	if err := addFilter(s, add); err != nil {
		return err
	}
	changes, err := os.ReadFile(filepath.Join(s.Root, "CHANGELOG.md"))
	if err != nil {
		return err
	}
	if err := add("notes.md", []byte(notes(string(changes), s.Version))); err != nil {
		return err
	}
	// Write the checksums, and sign them.
	text := sums.String()
	if err := os.WriteFile(filepath.Join(s.Out, "checksums.txt"), []byte(text), 0o644); err != nil {
		return err
	}
	fmt.Print(text)
	if signer == nil {
		return nil
	}
	signed, err := sign([]byte(text), signer)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(s.Out, "checksums.txt.sig"), []byte(signed), 0o644)
}

func addBinary(s settings, platform string, add func(string, []byte) error) error {
	dir, err := os.MkdirTemp("", "weir-release-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	// Compile the binary.
	path := filepath.Join(dir, "weir")
	if err := compile(s.Root, s.Version, platform, path); err != nil {
		return err
	}
	binary, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	// Pack it with the license.
	license, err := os.ReadFile(filepath.Join(s.Root, "LICENSE"))
	if err != nil {
		return err
	}
	plain, err := archive([]entry{{"LICENSE", license, 0o644, 0}, {"weir", binary, 0o755, 0}})
	if err != nil {
		return err
	}
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	if _, err := z.Write(plain); err != nil {
		return err
	}
	if err := z.Close(); err != nil {
		return err
	}
	name := fmt.Sprintf("weir_%s_%s", s.Version, strings.ReplaceAll(platform, "/", "_"))
	if err := add(name+".tar.gz", packed.Bytes()); err != nil {
		return err
	}
	// Add its SBOM.
	text, err := listOfBinary(path, "weir", s.Version)
	if err != nil {
		return err
	}
	return add(name+".spdx.json", text)
}

func addFilter(s settings, add func(string, []byte) error) error {
	module, err := os.ReadFile(s.Module)
	if err != nil {
		return fmt.Errorf("%w: make build makes it", err)
	}
	if err := add("weir-filter_"+s.Version+".wasm", module); err != nil {
		return err
	}
	text, err := listOfFilter(s.Root, s.Version, module)
	if err != nil {
		return err
	}
	return add("weir-filter_"+s.Version+".spdx.json", text)
}

// notes returns the section of the changelog for a version, or else its first section.
func notes(changelog, version string) string {
	sections := strings.Split("\n"+changelog, "\n## ")[1:]
	for _, section := range sections {
		if title, _, _ := strings.Cut(section, "\n"); strings.HasPrefix(title, version+",") || title == version {
			return "## " + strings.TrimSpace(section) + "\n"
		}
	}
	if len(sections) == 0 {
		return ""
	}
	return "## " + strings.TrimSpace(sections[0]) + "\n"
}
