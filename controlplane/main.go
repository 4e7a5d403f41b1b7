// Command weir is the control plane of the Weir rate limiter and its command line.
package main

import (
	"os"

	"github.com/weir-proxy/weir/controlplane/internal/cli"
)

// version is set by the build.
var version = "dev"

func main() {
	os.Exit(cli.Main(os.Args[1:], cli.Streams{In: os.Stdin, Out: os.Stdout, Err: os.Stderr}, version))
}
