// Package controlplane is the command weir but for its main function, which is at the root of the
// tree: go install names a program after its folder, and only the root can embed envoy.yaml.
package controlplane

import (
	"io/fs"
	"os"
	"runtime/debug"

	"github.com/weir-proxy/weir/controlplane/internal/cli"
)

// Main runs the command line of the process and returns the exit code. files are the files of the
// tree that weir demo needs.
func Main(version string, files fs.FS) int {
	if version == "" {
		version = moduleVersion()
	}
	streams := cli.Streams{In: os.Stdin, Out: os.Stdout, Err: os.Stderr}
	return cli.Main(os.Args[1:], streams, cli.Build{Version: version, Files: files})
}

// moduleVersion returns the version that the go command has written into the program. After go
// install of a release it is the version of the release. After go build in a Git checkout it is the
// tag or a pseudo-version. If there is none, as with -buildvcs=false, moduleVersion returns dev.
func moduleVersion() string {
	info, ok := debug.ReadBuildInfo()
	if !ok || info.Main.Version == "" || info.Main.Version == "(devel)" {
		return "dev"
	}
	return info.Main.Version
}
