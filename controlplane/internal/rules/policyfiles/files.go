// Package policyfiles keeps the policy set equal to files: one file, or a folder in which each team
// has a file. The files are usually a mounted ConfigMap that comes from a repository.
package policyfiles

import (
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/weir-proxy/weir/controlplane/internal/rules/policydoc"
	"github.com/weir-proxy/weir/shared/policy"
)

// MaxFiles is the maximum number of files in a folder.
const MaxFiles = 1000

// Document is the policy set of the files.
type Document struct {
	Text   []byte
	Format policydoc.Format
}

// Read reads a file, or all policy files of a folder sorted by name. Names of policy files end in
// .yaml, .yml or .json. Names that begin with a dot, as in a mounted ConfigMap, are left out. A
// folder inside with policy files is an error, because its limits would not hold.
func Read(path string) ([]policydoc.Part, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.IsDir() {
		part, err := readPart(path, filepath.Base(path))
		return []policydoc.Part{part}, err
	}
	entries, err := os.ReadDir(path) // ReadDir sorts them by name.
	if err != nil {
		return nil, err
	}
	// Read each policy file of the folder.
	var parts []policydoc.Part
	size := 0
	for _, entry := range entries {
		file := filepath.Join(path, entry.Name())
		if !isPolicyFile(file) {
			if inner := policyFileBelow(file); inner != "" {
				return nil, fmt.Errorf("%s: is not read, since only the files of the folder itself are: move it to %s",
					inner, path)
			}
			continue
		}
		part, err := readPart(file, entry.Name())
		if err != nil {
			return nil, err
		}
		parts = append(parts, part)
		size += len(part.Text)
		if len(parts) > MaxFiles || size > policydoc.MaxBytes {
			return nil, fmt.Errorf("%s: there are more than %d policy files or %d bytes in it",
				path, MaxFiles, policydoc.MaxBytes)
		}
	}
	if len(parts) == 0 {
		return nil, fmt.Errorf("%s: there is no policy file in it: they end in .yaml, .yml or .json", path)
	}
	return parts, nil
}

// Load reads the policy set at a path. It returns errors of reading, *policydoc.SyntaxError, or
// *policydoc.Refused, whose problems name files if there are several.
func Load(path string) (Document, error) {
	parts, err := Read(path)
	if err != nil {
		return Document{}, err
	}
	return joinParts(path, parts, policydoc.LoadNew)
}

// joinParts makes one document of the parts, and validates it. A single file stays unchanged.
func joinParts(
	path string, parts []policydoc.Part, load func([]byte, policydoc.Format) (*policy.Set, error),
) (Document, error) {
	if len(parts) == 1 && filepath.Base(path) == parts[0].Name {
		_, err := load(parts[0].Text, parts[0].Format)
		policydoc.InFile(path, err)
		return Document{parts[0].Text, parts[0].Format}, err
	}
	text, err := policydoc.Join(parts, load)
	policydoc.InFile(path, err)
	return Document{text, policydoc.YAML}, err
}

// isPolicyFile reports whether an entry of a folder is a policy file.
func isPolicyFile(file string) bool {
	if strings.HasPrefix(filepath.Base(file), ".") {
		return false
	}
	switch strings.ToLower(filepath.Ext(file)) {
	case ".yaml", ".yml", ".json":
	default:
		return false
	}
	info, err := os.Stat(file) // A mounted file is a link.
	return err == nil && info.Mode().IsRegular()
}

// mostBelow bounds the number of entries that policyFileBelow reads.
const mostBelow = 10 * MaxFiles

// policyFileBelow returns a policy file below a folder, or below a link to a folder, as Kubernetes
// mounts a ConfigMap. It returns "" for a file, and for a folder that cannot be listed.
func policyFileBelow(folder string) (found string) {
	seen := 0
	_ = filepath.WalkDir(folder+string(filepath.Separator), func(file string, entry fs.DirEntry, err error) error {
		seen++
		switch hidden := strings.HasPrefix(filepath.Base(file), "."); {
		case seen > mostBelow:
			return filepath.SkipAll
		case err != nil || hidden && entry.IsDir():
			return filepath.SkipDir
		case isPolicyFile(file):
			found = file
			return filepath.SkipAll
		}
		return nil
	})
	return found
}

func readPart(file, name string) (policydoc.Part, error) {
	part := policydoc.Part{Name: name}
	f, err := os.Open(file)
	if err != nil {
		return part, err
	}
	defer f.Close()
	part.Text, err = io.ReadAll(io.LimitReader(f, policydoc.MaxBytes+1))
	part.Format = policydoc.FormatOf(name, part.Text)
	return part, err
}
