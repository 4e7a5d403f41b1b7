// Command weir is the control plane of the Weir rate limiter and its command line.
package main

import (
	"embed"
	"os"

	"github.com/weir-proxy/weir/controlplane"
)

// version is set by make, the Dockerfile and tools/images. If it is empty, as after go install,
// controlplane.Main uses the version that the go command has written into the program.
var version string

// files are the files of the tree that weir demo needs on a machine without the tree.
//
//go:embed envoy.yaml examples/url-shortener.yaml tools/requirements.txt
var files embed.FS

func main() { os.Exit(controlplane.Main(version, files)) }
