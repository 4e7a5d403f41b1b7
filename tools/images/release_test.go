package main

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"crypto"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/sigstore/sigstore/pkg/signature"
	"github.com/weir-proxy/weir/tools/stack"
)

// clientsDir returns the folder that tools/setup.sh clients makes.
func clientsDir() string {
	cache, err := stack.CacheDir()
	if err != nil {
		panic(err)
	}
	return filepath.Join(cache, "clients")
}

// A releaseDir is a built release, and the public half of the key that signed it.
type releaseDir struct {
	dir    string
	public crypto.PublicKey
}

// The release is built once for all tests, for the platforms of `make release`.
var released struct {
	sync.Once
	releaseDir
	err error
}

func TestMain(m *testing.M) {
	code := m.Run()
	os.RemoveAll(released.dir)
	os.Exit(code)
}

func builtRelease(t *testing.T) releaseDir {
	t.Helper()
	released.Do(func() {
		path, public := newKey(t)
		signer, err := loadSigner(path)
		if err != nil {
			t.Fatal(err)
		}
		s := here
		s.Platforms = releasePlatforms
		released.public = public
		if s.Out, released.err = os.MkdirTemp("", "weir-release-test-"); released.err == nil {
			released.dir = s.Out
			released.err = release(s, signer)
		}
	})
	if released.err != nil {
		t.Fatal(released.err)
	}
	return released.releaseDir
}

// read returns a file of the release.
func (r releaseDir) read(t *testing.T, name string) []byte {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(r.dir, name))
	if err != nil {
		t.Fatal(err)
	}
	return content
}

func TestNotesAreTheSectionOfTheVersion(t *testing.T) {
	changelog := "# Changelog\n\n## 0.2.0, unreleased\n\n- b\n\n## 0.1.0, 2026-11-01\n\n- a\n"
	for version, want := range map[string]string{"0.1.0": "## 0.1.0, 2026-11-01\n\n- a\n",
		"0.2.0":        "## 0.2.0, unreleased\n\n- b\n",
		"0.2.0-7-gabc": "## 0.2.0, unreleased\n\n- b\n"} {
		if got := notes(changelog, version); got != want {
			t.Errorf("%s: %q", version, got)
		}
	}
}

// All files are there, the checksums hold for each, and the signatures hold for checksums and
// provenance.
func TestAReleaseIsWholeAndSigned(t *testing.T) {
	r := builtRelease(t)
	check := exec.Command("sha256sum", "--check", "--strict", "checksums.txt")
	check.Dir = r.dir
	if output, err := check.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, output)
	}
	sums := string(r.read(t, "checksums.txt"))
	want := []string{"libweir-0.1.0-test-amd64.so", "libweir-0.1.0-test-amd64.spdx.json", "libweir-0.1.0-test-arm64.so",
		"libweir-0.1.0-test-arm64.spdx.json", "notes.md", "provenance.json", "weir-0.1.0-test.tgz", "weir-client-0.1.0-test.tgz",
		"weir-filter_0.1.0-test.spdx.json", "weir-filter_0.1.0-test.wasm", "weir_0.1.0-test_amd64.deb",
		"weir_0.1.0-test_arm64.deb", "weir_0.1.0-test_darwin_amd64.spdx.json", "weir_0.1.0-test_darwin_amd64.tar.gz",
		"weir_0.1.0-test_darwin_arm64.spdx.json", "weir_0.1.0-test_darwin_arm64.tar.gz",
		"weir_0.1.0-test_linux_amd64.spdx.json", "weir_0.1.0-test_linux_amd64.tar.gz",
		"weir_0.1.0-test_linux_arm64.spdx.json", "weir_0.1.0-test_linux_arm64.tar.gz",
		"weir_client-0.1.0.dev0+test-py3-none-any.whl"}
	var got []string
	for line := range strings.Lines(sums) {
		got = append(got, strings.Fields(line)[1])
	}
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("the release has %q, want %q", got, want)
	}
	verifier, err := signature.LoadVerifier(r.public, crypto.SHA256)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"checksums.txt", "provenance.json"} {
		text, err := base64.StdEncoding.DecodeString(string(r.read(t, name+".sig")))
		if err != nil {
			t.Fatal(err)
		}
		signed := r.read(t, name)
		if err := verifier.VerifySignature(bytes.NewReader(text), bytes.NewReader(signed)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if verifier.VerifySignature(bytes.NewReader(text), bytes.NewReader(append(signed, ' '))) == nil {
			t.Errorf("%s: the signature holds for another text", name)
		}
	}
}

// The provenance names the commit, and each other file with its sum.
func TestTheProvenanceNamesTheCommitAndEachFile(t *testing.T) {
	r := builtRelease(t)
	var says statement
	if err := json.Unmarshal(r.read(t, "provenance.json"), &says); err != nil {
		t.Fatal(err)
	}
	sources := says.Predicate.Definition.Sources
	if says.Type != "https://in-toto.io/Statement/v1" || says.Kind != "https://slsa.dev/provenance/v1" ||
		len(sources) != 1 || sources[0].Digest["gitCommit"] != here.Commit ||
		says.Predicate.Definition.Tools["go"] != runtime.Version() {
		t.Errorf("%+v", says)
	}
	var all string
	for _, s := range says.Subject {
		all += s.Digest["sha256"] + "  " + s.Name + "\n"
	}
	all += sum(r.read(t, "provenance.json")) + "  provenance.json\n"
	if sums := string(r.read(t, "checksums.txt")); all != sums {
		t.Errorf("the provenance is about\n%s\nand the checksums about\n%s", all, sums)
	}
	nowhere := here
	nowhere.Commit = ""
	if _, err := provenanceOf(nowhere, nil); err == nil {
		t.Error("a release of no commit has a provenance")
	}
}

// unpackTar returns the files of a .tar.gz by their names.
func unpackTar(t *testing.T, packed []byte) map[string][]byte {
	t.Helper()
	z, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		t.Fatal(err)
	}
	files := map[string][]byte{}
	for r := tar.NewReader(z); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		if files[h.Name], err = io.ReadAll(r); err != nil {
			t.Fatal(err)
		}
	}
}

// The archive has all that `weir demo` and a service need, in a folder of its own.
func TestTheArchiveHasTheProgramAndItsPapers(t *testing.T) {
	files := unpackTar(t, builtRelease(t).read(t, "weir_0.1.0-test_linux_amd64.tar.gz"))
	for name, beginning := range map[string]string{"weir": "\x7fELF", "weir.wasm": "\x00asm", "weir.1": ".TH WEIR",
		"LICENSE": "", "NOTICES.txt": "Weir contains", "envoy.yaml": "# Envoy", "weir.service": "[Unit]",
		"completions/weir.bash": "_weir()", "completions/_weir": "#compdef", "completions/weir.fish": "function"} {
		content, has := files["weir_0.1.0-test_linux_amd64/"+name]
		if !has || !strings.HasPrefix(string(content), beginning) {
			t.Errorf("%s: %v %.20q", name, has, content)
		}
	}
	if len(files) != 10 {
		t.Errorf("the archive has %d files: %q", len(files), slices.Collect(maps.Keys(files)))
	}
}

// dpkg reads the package's fields and finds its files.
func TestDpkgReadsThePackages(t *testing.T) {
	r := builtRelease(t)
	for _, architecture := range here.Platforms {
		_, architecture, _ = strings.Cut(architecture, "/")
		path := filepath.Join(r.dir, "weir_0.1.0-test_"+architecture+".deb")
		dpkg := func(args ...string) string {
			output, err := exec.Command("dpkg-deb", args...).CombinedOutput()
			if err != nil {
				t.Fatalf("dpkg-deb %s: %v\n%s", args, err, output)
			}
			return string(output)
		}
		want := "Package: weir\nVersion: 0.1.0~test\nArchitecture: " + architecture + "\n"
		if fields := dpkg("--field", path, "Package", "Version", "Architecture"); fields != want {
			t.Errorf("it says %s", fields)
		}
		if settings := dpkg("--info", path, "conffiles"); settings != "/etc/default/weir\n" {
			t.Errorf("its settings are %q", settings)
		}
		list := dpkg("--contents", path)
		for _, line := range []string{`-rwxr-xr-x 0/0 .* ./usr/bin/weir\n`, `-rw-r----- 0/0 .* ./etc/default/weir\n`,
			`drwxr-xr-x 0/0 .* ./usr/lib/systemd/system/\n`, `-rw-r--r-- 0/0 .* ./usr/share/weir/weir.wasm\n`} {
			if !regexp.MustCompile(line).MatchString(list) {
				t.Errorf("the package lacks %s:\n%s", line, list)
			}
		}
		dir := t.TempDir()
		dpkg("--extract", path, dir)
		dpkg("--control", path, filepath.Join(dir, "DEBIAN"))
		check := exec.Command("md5sum", "--check", "--strict", "DEBIAN/md5sums")
		check.Dir = dir
		if output, err := check.CombinedOutput(); err != nil || strings.Count(string(output), ": OK") != 12 {
			t.Errorf("%v\n%s", err, output)
		}
	}
}

// Each library of the program, the filter and the console has its license in the notices.
func TestNoticesAreWhole(t *testing.T) {
	files := unpackTar(t, builtRelease(t).read(t, "weir_0.1.0-test_linux_amd64.tar.gz"))
	text := string(files["weir_0.1.0-test_linux_amd64/NOTICES.txt"])
	dir := t.TempDir()
	path := filepath.Join(dir, "weir")
	if err := os.WriteFile(path, files["weir_0.1.0-test_linux_amd64/weir"], 0o755); err != nil {
		t.Fatal(err)
	}
	_, parts, err := ofBinary(path)
	if err != nil || len(parts) < 20 {
		t.Fatal(parts, err)
	}
	inFilter, err := ofFilter(here.Root)
	if err != nil || len(inFilter) == 0 {
		t.Fatal(inFilter, err)
	}
	var names []string
	for _, c := range append(parts, inFilter...) {
		names = append(names, c.Path+" "+c.Version)
	}
	names = append(names, "Go", "wasi-libc", tinygoModule+" v")
	locked, err := os.ReadFile("../../console/package-lock.json")
	if err != nil {
		t.Fatal(err)
	}
	var lock struct {
		Packages map[string]struct {
			Version string
			Dev     bool
		}
	}
	if err := json.Unmarshal(locked, &lock); err != nil {
		t.Fatal(err)
	}
	for name, p := range lock.Packages {
		if name != "" && !p.Dev && !strings.Contains(name, "@types/") {
			names = append(names, strings.TrimPrefix(name, "node_modules/")+" "+p.Version)
		}
	}
	for _, name := range names {
		if !strings.Contains(text, strings.Repeat("=", 80)+"\n"+name) {
			t.Errorf("%s has no license; console/notices.sh writes those of the console", name)
		}
	}
}

// The chart of the release is the chart of the tree, without links, with the version of the
// release.
func TestTheChartIsWhole(t *testing.T) {
	files := unpackTar(t, builtRelease(t).read(t, "weir-0.1.0-test.tgz"))
	for name, source := range map[string]string{"files/weir.json": "deploy/grafana/weir.json",
		"templates/deployment.yaml": "deploy/helm/weir/templates/deployment.yaml",
		"values.schema.json":        "deploy/helm/weir/values.schema.json"} {
		want, err := os.ReadFile(filepath.Join(here.Root, source))
		if err != nil || !bytes.Equal(files["weir/"+name], want) {
			t.Errorf("%s differs from %s: %v", name, source, err)
		}
	}
	about := string(files["weir/Chart.yaml"])
	if !strings.Contains(about, "\nversion: 0.1.0-test\nappVersion: 0.1.0-test\n") {
		t.Errorf("the chart says\n%s", about)
	}
}

// The clients' packages have the clients of the tree, with their types. `make test-install`
// installs and runs them.
func TestTheClientsAreWhole(t *testing.T) {
	r := builtRelease(t)
	wheel := r.read(t, "weir_client-0.1.0.dev0+test-py3-none-any.whl")
	z, err := zip.NewReader(bytes.NewReader(wheel), int64(len(wheel)))
	if err != nil {
		t.Fatal(err)
	}
	for name, source := range map[string]string{"__init__.py": "weir_client.py", "__init__.pyi": "weir_client.pyi"} {
		got, err := fs.ReadFile(z, "weir_client/"+name)
		if err != nil {
			t.Fatal(err)
		}
		want, err := os.ReadFile("../../client/python/" + source)
		if err != nil || !bytes.Equal(got, want) {
			t.Errorf("the wheel has another %s: %v", source, err)
		}
	}
	if _, err := fs.Stat(z, "weir_client/py.typed"); err != nil {
		t.Errorf("type checkers ignore the wheel's types: %v", err)
	}
	files := unpackTar(t, r.read(t, "weir-client-0.1.0-test.tgz"))
	for name, has := range map[string]string{"package.json": `"version": "0.1.0-test"`,
		"weir-client.js": "export function pacedFetch", "weir-client.d.ts": "export declare function pacedFetch"} {
		if !strings.Contains(string(files["package/"+name]), has) {
			t.Errorf("%s lacks %s:\n%s", name, has, files["package/"+name])
		}
	}
}

// go install names the program weir, and the program knows its version.
func TestGoInstallGivesTheProgramWeir(t *testing.T) {
	bin := t.TempDir()
	install := exec.Command("go", "install", "-trimpath", ".")
	install.Dir = here.Root
	install.Env = append(os.Environ(), "GOBIN="+bin)
	if output, err := install.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, output)
	}
	files, err := os.ReadDir(bin)
	if err != nil || len(files) != 1 || files[0].Name() != "weir" {
		t.Fatal(files, err)
	}
	output, err := exec.Command(filepath.Join(bin, "weir"), "version").CombinedOutput()
	if err != nil || !regexp.MustCompile(`^(dev|v\d+\.\d+\.\d+\S*)\n$`).Match(output) {
		t.Errorf("its version is %q: %v", output, err)
	}
}
