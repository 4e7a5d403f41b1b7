package main

import (
	"bytes"
	"crypto/md5"
	"fmt"
	"path"
	"slices"
	"strings"
)

// A debian is a package for dpkg.
type debian struct {
	// control has the fields of the package, but for its size.
	control string
	// files are the installed files, by their paths without the first slash.
	files []entry
	// settings are the paths of the files that an administrator may change.
	settings []string
	// scripts are run before or after a step, by their names.
	scripts map[string]string
}

// pack returns the package. Its bytes depend on its fields alone.
func (d debian) pack() ([]byte, error) {
	// Sum the files up.
	var sums strings.Builder
	kilobytes := 0
	for _, f := range d.files {
		fmt.Fprintf(&sums, "%x  %s\n", md5.Sum(f.content), f.name)
		kilobytes += (len(f.content) + 1023) / 1024
	}
	var settings strings.Builder
	for _, name := range d.settings {
		fmt.Fprintf(&settings, "/%s\n", name)
	}
	// Pack the description.
	about := []entry{
		{"./", nil, 0o755, 0},
		{"./control", fmt.Appendf(nil, "%sInstalled-Size: %d\n", d.control, kilobytes), 0o644, 0},
		{"./md5sums", []byte(sums.String()), 0o644, 0},
		{"./conffiles", []byte(settings.String()), 0o644, 0},
	}
	for _, name := range []string{"preinst", "postinst", "prerm", "postrm"} {
		if script, has := d.scripts[name]; has {
			about = append(about, entry{"./" + name, []byte(script), 0o755, 0})
		}
	}
	control, err := compressed(about)
	if err != nil {
		return nil, err
	}
	// Pack the files, each after its folders.
	data, err := compressed(withFolders(d.files))
	if err != nil {
		return nil, err
	}
	return ar([]entry{{"debian-binary", []byte("2.0\n"), 0o644, 0}, {"control.tar.gz", control, 0o644, 0},
		{"data.tar.gz", data, 0o644, 0}}), nil
}

// withFolders returns files by their names, with the folders that they are in.
func withFolders(files []entry) []entry {
	all := map[string]entry{"./": {"./", nil, 0o755, 0}}
	for _, f := range files {
		f.name = "./" + f.name
		all[f.name] = f
		for dir := path.Dir(f.name); dir != "."; dir = path.Dir(dir) {
			folder := "./" + dir + "/"
			all[folder] = entry{folder, nil, 0o755, 0}
		}
	}
	var sorted []entry
	for _, e := range all {
		sorted = append(sorted, e)
	}
	slices.SortFunc(sorted, func(a, b entry) int { return strings.Compare(a.name, b.name) })
	return sorted
}

// ar returns an archive in the format that dpkg reads.
func ar(files []entry) []byte {
	out := bytes.NewBufferString("!<arch>\n")
	for _, f := range files {
		fmt.Fprintf(out, "%-16s%-12d%-6d%-6d%-8o%-10d`\n", f.name, made().Unix(), 0, 0, 0o100000|f.mode, len(f.content))
		out.Write(f.content)
		if len(f.content)%2 == 1 {
			out.WriteByte('\n')
		}
	}
	return out.Bytes()
}
