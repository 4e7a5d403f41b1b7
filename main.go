// Command weir is the control plane of the Weir rate limiter and its command line.
package main

import (
	"embed"
	"os"

	"github.com/weir-proxy/weir/controlplane"
)

// version is set by the build; empty if `go install` built it, which knows the version.
var version string

// files are the files of the tree that weir demo needs on a machine without the tree.
//
//go:embed envoy.yaml examples/url-shortener.yaml tools/requirements.txt
var files embed.FS

func main() { os.Exit(controlplane.Main(version, files)) }
