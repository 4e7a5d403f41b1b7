package main

import (
	"archive/zip"
	"bytes"
	"compress/flate"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

const wheelFields = `Metadata-Version: 2.1
Name: weir-client
Version: %s
Summary: Waits if an API would refuse: transports for httpx that obey rate limit headers
Home-page: https://github.com/weir-proxy/weir
License: Apache-2.0
Requires-Python: >=3.9
Requires-Dist: httpx>=0.27,<1
`

// addWheel adds the Python client as a package for pip, with its types. Type checkers read types
// only from a folder that has the file py.typed.
func addWheel(s settings, license []byte, f *folder) error {
	code, err := os.ReadFile(filepath.Join(s.Root, "client/python/weir_client.py"))
	if err != nil {
		return err
	}
	types, err := os.ReadFile(filepath.Join(s.Root, "client/python/weir_client.pyi"))
	if err != nil {
		return err
	}
	version := wheelVersion(s.Version)
	info := "weir_client-" + version + ".dist-info/"
	files := []entry{
		{"weir_client/__init__.py", code, 0o644, 0},
		{"weir_client/__init__.pyi", types, 0o644, 0},
		{"weir_client/py.typed", nil, 0o644, 0},
		{info + "LICENSE", license, 0o644, 0},
		{info + "METADATA", fmt.Appendf(nil, wheelFields, version), 0o644, 0},
		{info + "WHEEL", []byte("Wheel-Version: 1.0\nGenerator: weir-images\nRoot-Is-Purelib: true\nTag: py3-none-any\n"),
			0o644, 0},
	}
	// pip checks each file by its sum in RECORD.
	var record strings.Builder
	for _, file := range files {
		sum := sha256.Sum256(file.content)
		fmt.Fprintf(&record, "%s,sha256=%s,%d\n", file.name, base64.RawURLEncoding.EncodeToString(sum[:]), len(file.content))
	}
	fmt.Fprintf(&record, "%sRECORD,,\n", info)
	packed, err := zipped(append(files, entry{info + "RECORD", []byte(record.String()), 0o644, 0}))
	if err != nil {
		return err
	}
	return f.add("weir_client-"+version+"-py3-none-any.whl", packed)
}

// zipped returns a zip file whose bytes depend on the entries alone.
func zipped(files []entry) ([]byte, error) {
	var out bytes.Buffer
	w := zip.NewWriter(&out)
	w.RegisterCompressor(zip.Deflate, func(out io.Writer) (io.WriteCloser, error) {
		return flate.NewWriter(out, flate.BestCompression)
	})
	for _, file := range files {
		h := &zip.FileHeader{Name: file.name, Method: zip.Deflate}
		h.SetMode(os.FileMode(file.mode))
		// A zip file cannot have a time before 1980.
		h.ModifiedDate, h.ModifiedTime = 1<<5|1, 0
		part, err := w.CreateHeader(h)
		if err != nil {
			return nil, err
		}
		if _, err := part.Write(file.content); err != nil {
			return nil, err
		}
	}
	err := w.Close()
	return out.Bytes(), err
}

// addNPM adds the TypeScript client as a package for npm: JavaScript, and its types.
func addNPM(s settings, license []byte, f *folder) error {
	out, err := os.MkdirTemp("", "weir-npm-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(out)
	// Compile the client.
	command := exec.Command(filepath.Join(s.Clients, "node"), filepath.Join(s.Clients, "tsc.js"),
		"--project", filepath.Join(s.Root, "client/typescript"), "--noEmit", "false", "--declaration", "--outDir", out)
	if output, err := command.CombinedOutput(); err != nil {
		return fmt.Errorf("cannot compile the TypeScript client: %w; tools/setup.sh clients installs the compiler\n%s",
			err, output)
	}
	// Describe the package.
	version := semanticVersion(s.Version)
	about, err := json.MarshalIndent(map[string]any{
		"name": "weir-client", "version": version, "license": "Apache-2.0", "type": "module",
		"description": "Waits if an API would refuse: a fetch that obeys rate limit headers",
		"repository":  map[string]string{"type": "git", "url": "git+https://github.com/weir-proxy/weir.git"},
		"exports":     map[string]any{".": map[string]string{"types": "./weir-client.d.ts", "default": "./weir-client.js"}},
		"types":       "./weir-client.d.ts", "engines": map[string]string{"node": ">=20"},
	}, "", "  ")
	if err != nil {
		return err
	}
	files := []entry{{"package/LICENSE", license, 0o644, 0}, {"package/package.json", append(about, '\n'), 0o644, 0}}
	for _, name := range []string{"weir-client.d.ts", "weir-client.js"} {
		content, err := os.ReadFile(filepath.Join(out, name))
		if err != nil {
			return err
		}
		files = append(files, entry{"package/" + name, content, 0o644, 0})
	}
	packed, err := compressed(files)
	if err != nil {
		return err
	}
	return f.add("weir-client-"+version+".tgz", packed)
}
