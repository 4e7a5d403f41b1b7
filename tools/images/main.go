// Command images makes Weir's images and releases without a container engine: the control plane for
// Linux on amd64 and arm64, and the filter in both forms that Istio and Envoy Gateway read. Two
// builds of one commit have the same digests.
//
//	images -out DIR [-push REGISTRY/PATH] [-key FILE]   images, as an OCI layout in DIR
//	images -out DIR -release -commit ID [-key FILE]     the files of a release
package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/weir-proxy/weir/tools/stack"
)

// settings are the values of the command line.
type settings struct {
	// Root is the folder of the project.
	Root string
	// Out is the folder for the result. Its content is replaced.
	Out string
	// Version is the version in the images' tags, like 0.1.0.
	Version string
	// Module is the built filter.
	Module string
	// Native is the folder of the native hosts, ARCH/libweir.so; empty leaves them out.
	Native string
	// Push is where the images go, like registry.example.com/team; empty keeps them here.
	Push string
	// Key is a file with the private key that signs. $COSIGN_PRIVATE_KEY may hold the key itself.
	Key string
	// Platforms are the platforms of the control plane's image, or of the binaries of a release.
	Platforms []string
	// Release makes the files of a release.
	Release bool
	// Commit is the commit that a release is built from, for its provenance.
	Commit string
	// Clients is the folder with Node and TypeScript that tools/setup.sh clients makes.
	Clients string
}

// The platforms of the control plane's image, and of the archives of a release.
var (
	imagePlatforms   = []string{"linux/amd64", "linux/arm64"}
	releasePlatforms = append(slices.Clone(imagePlatforms), "darwin/amd64", "darwin/arm64")
)

func main() {
	s, platforms := settings{}, ""
	flag.StringVar(&s.Root, "root", "../..", "`folder` of the project")
	flag.StringVar(&s.Out, "out", "", "`folder` for the result; its content is replaced")
	flag.StringVar(&s.Version, "version", "dev", "version, the tag of the images")
	flag.StringVar(&s.Module, "module", "../../build/weir.wasm", "the built filter")
	flag.StringVar(&s.Native, "native", "", "`folder` of the filter's native hosts; empty leaves them out")
	flag.StringVar(&s.Push, "push", "", "`registry` and path to push to, like registry.example.com/team")
	flag.StringVar(&s.Key, "key", "", "`file` with the private key that signs, in PEM or as cosign makes it")
	flag.StringVar(&platforms, "platforms", "", "`platforms` to build for; empty is those of the images, or of a release")
	flag.BoolVar(&s.Release, "release", false, "make the files of a release")
	flag.StringVar(&s.Commit, "commit", "", "`commit` that a release is built from")
	flag.StringVar(&s.Clients, "clients", "", "`folder` with Node and TypeScript; empty is where tools/setup.sh puts it")
	flag.Parse()
	s.Platforms = imagePlatforms
	if s.Release {
		s.Platforms = releasePlatforms
	}
	if platforms != "" {
		s.Platforms = strings.Split(platforms, ",")
	}
	s.Version = strings.TrimPrefix(s.Version, "v")
	if err := run(s); err != nil {
		fmt.Fprintln(os.Stderr, "images:", err)
		os.Exit(1)
	}
}

func run(s settings) error {
	if s.Out == "" {
		return fmt.Errorf("-out is needed: the folder for the result")
	}
	signer, err := loadSigner(s.Key)
	if err != nil {
		return err
	}
	if s.Release {
		if s.Clients == "" {
			cache, err := stack.CacheDir()
			if err != nil {
				return err
			}
			s.Clients = filepath.Join(cache, "clients")
		}
		return release(s, signer)
	}
	images, err := build(s)
	if err != nil {
		return err
	}
	if err := writeLayout(s.Out, images); err != nil {
		return err
	}
	for _, i := range images {
		fmt.Printf("%s  %s:%s\n", i.digest, i.repository, i.tag)
	}
	fmt.Fprintf(os.Stderr, "built with %s into %s\n", runtime.Version(), s.Out)
	if s.Push == "" {
		return nil
	}
	return push(s.Push, images, signer)
}
