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

// A folder takes the files of a release, and sums them up.
type folder struct {
	dir   string
	files []subject
}

// add writes a file.
func (f *folder) add(name string, content []byte) error {
	f.files = append(f.files, subject{Name: name, Digest: map[string]string{"sha256": sum(content)}})
	return os.WriteFile(filepath.Join(f.dir, name), content, 0o644)
}

// sums returns the checksums of all files as sha256sum writes them.
func (f *folder) sums() string {
	var b strings.Builder
	for _, file := range f.files {
		fmt.Fprintf(&b, "%s  %s\n", file.Digest["sha256"], file.Name)
	}
	return b.String()
}

// release writes all files of a release except the images: archives and packages of the program,
// the filter, the chart, the clients, the materials, the notes and the provenance. The checksums of
// all files and the provenance are signed if there is a signer.
func release(s settings, signer signature.Signer) error {
	if err := os.RemoveAll(s.Out); err != nil {
		return err
	}
	if err := os.MkdirAll(s.Out, 0o755); err != nil {
		return err
	}
	f := &folder{dir: s.Out}
	if err := addFiles(s, f); err != nil {
		return err
	}
	// Write the statement about all files so far, and the checksums of all files with it.
	origin, err := provenanceOf(s, f.files)
	if err != nil {
		return err
	}
	if err := f.add("provenance.json", origin); err != nil {
		return err
	}
	sums := []byte(f.sums())
	if err := os.WriteFile(filepath.Join(s.Out, "checksums.txt"), sums, 0o644); err != nil {
		return err
	}
	fmt.Printf("%s", sums)
	// Sign both.
	if signer == nil {
		return nil
	}
	for name, text := range map[string][]byte{"provenance.json": origin, "checksums.txt": sums} {
		signed, err := sign(text, signer)
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(s.Out, name+".sig"), []byte(signed), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// addFiles adds everything but the files about the others.
func addFiles(s settings, f *folder) error {
	p, err := readPapers(s)
	if err != nil {
		return err
	}
	for _, platform := range s.Platforms {
		if err := addBinary(s, platform, p, f); err != nil {
			return err
		}
	}
	if err := addFilter(s, p.module, f); err != nil {
		return err
	}
	if err := addChart(s, f); err != nil {
		return err
	}
	if err := addWheel(s, p.license, f); err != nil {
		return err
	}
	if err := addNPM(s, p.license, f); err != nil {
		return err
	}
	return f.add("notes.md", []byte(notes(string(p.changes), s.Version)))
}

// addBinary adds the archive for a platform and its materials, and for Linux the Debian package and
// the native host of the filter.
func addBinary(s settings, platform string, p papers, f *folder) error {
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
	// Pack it.
	system, architecture, _ := strings.Cut(platform, "/")
	name := fmt.Sprintf("weir_%s_%s_%s", s.Version, system, architecture)
	packed, err := archiveOf(binary, p, name)
	if err != nil {
		return err
	}
	if err := f.add(name+".tar.gz", packed); err != nil {
		return err
	}
	text, err := listOfBinary(path, "weir", s.Version)
	if err != nil {
		return err
	}
	if err := f.add(name+".spdx.json", text); err != nil {
		return err
	}
	// Add the native host, and make the package.
	if system != "linux" {
		return nil
	}
	if s.Native != "" {
		if err := addNative(s, architecture, f); err != nil {
			return err
		}
	}
	packed, err = debianOf(s, architecture, binary, p)
	if err != nil {
		return err
	}
	return f.add(fmt.Sprintf("weir_%s_%s.deb", s.Version, architecture), packed)
}

// compressed returns files as a .tar.gz.
func compressed(files []entry) ([]byte, error) {
	plain, err := archive(files)
	if err != nil {
		return nil, err
	}
	return gzipped(plain)
}

// gzipped compresses a text. The result has neither a name nor a time.
func gzipped(text []byte) ([]byte, error) {
	var out bytes.Buffer
	z, err := gzip.NewWriterLevel(&out, gzip.BestCompression)
	if err != nil {
		return nil, err
	}
	if _, err := z.Write(text); err != nil {
		return nil, err
	}
	err = z.Close()
	return out.Bytes(), err
}

func addFilter(s settings, module []byte, f *folder) error {
	if err := f.add("weir-filter_"+s.Version+".wasm", module); err != nil {
		return err
	}
	text, err := listOfFilter(s.Root, s.Version, module)
	if err != nil {
		return err
	}
	return f.add("weir-filter_"+s.Version+".spdx.json", text)
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
