package main

import (
	"bytes"
	"debug/buildinfo"
	"debug/macho"
	"runtime"
	"strings"
	"testing"
)

// codeSignature is the load command of a program that is signed. macOS ends a program for arm64 that
// is not.
const codeSignature = macho.LoadCmd(0x1d)

// The archives for macOS have the program for their architecture, and else the files of the archives
// for Linux.
func TestTheArchivesForMacOSHaveAProgramForIt(t *testing.T) {
	r := builtRelease(t)
	for architecture, cpu := range map[string]macho.Cpu{"amd64": macho.CpuAmd64, "arm64": macho.CpuArm64} {
		archived := func(system string) (program []byte, papers map[string][]byte) {
			name, papers := "weir_0.1.0-test_"+system+"_"+architecture, map[string][]byte{}
			for path, content := range unpackTar(t, r.read(t, name+".tar.gz")) {
				papers[strings.TrimPrefix(path, name+"/")] = content
			}
			program = papers["weir"]
			delete(papers, "weir")
			return program, papers
		}
		program, papers := archived("darwin")
		_, want := archived("linux")
		if len(papers) != len(want) {
			t.Errorf("%s: the archive has %d files beside the program, for Linux %d", architecture, len(papers), len(want))
		}
		for path, content := range want {
			if !bytes.Equal(papers[path], content) {
				t.Errorf("%s: %s differs from the file for Linux", architecture, path)
			}
		}
		checkMachO(t, program, architecture, cpu)
	}
}

// checkMachO checks the program's format, its signature, and its build.
func checkMachO(t *testing.T, program []byte, architecture string, cpu macho.Cpu) {
	t.Helper()
	file, err := macho.NewFile(bytes.NewReader(program))
	if err != nil {
		t.Fatal(architecture, err)
	}
	if file.Cpu != cpu || file.Type != macho.TypeExec {
		t.Errorf("%s: the program is %v for %v", architecture, file.Type, file.Cpu)
	}
	signed := false
	for _, load := range file.Loads {
		raw := load.Raw()
		signed = signed || macho.LoadCmd(file.ByteOrder.Uint32(raw)) == codeSignature
	}
	if architecture == "arm64" && !signed {
		t.Errorf("%s: the program has no signature", architecture)
	}
	info, err := buildinfo.Read(bytes.NewReader(program))
	if err != nil {
		t.Fatal(architecture, err)
	}
	built := map[string]string{}
	for _, s := range info.Settings {
		built[s.Key] = s.Value
	}
	for key, want := range map[string]string{"GOOS": "darwin", "GOARCH": architecture, "CGO_ENABLED": "0",
		"-trimpath": "true"} {
		if built[key] != want {
			t.Errorf("%s: the program was built with %s=%q, want %q", architecture, key, built[key], want)
		}
	}
	if info.GoVersion != runtime.Version() || info.Main.Path != "github.com/weir-proxy/weir" || len(info.Deps) < 20 {
		t.Errorf("%s: the program is %s of %s with %d modules", architecture, info.Main.Path, info.GoVersion, len(info.Deps))
	}
	if !bytes.Contains(program, []byte("0.1.0-test")) {
		t.Errorf("%s: the program does not contain its version", architecture)
	}
}
