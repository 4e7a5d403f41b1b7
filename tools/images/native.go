package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

const (
	// nativeEnvoys are the versions of Envoy that load the native host.
	nativeEnvoys = "1.38 1.39 1.40"
	// envoysLabel is the label of nativeEnvoys.
	envoysLabel = "io.github.weir-proxy.envoy-versions"
	abiModule   = "github.com/envoyproxy/envoy/source/extensions/dynamic_modules"
)

// readNative reads the native host for an architecture, which `make native-all` has built.
func readNative(s settings, architecture string) ([]byte, error) {
	host, err := os.ReadFile(filepath.Join(s.Native, architecture, "libweir.so"))
	if err != nil {
		return nil, fmt.Errorf("cannot read the native host: %w; make native-all makes it", err)
	}
	return host, nil
}

// buildNative makes the image with the native host, for each platform.
func buildNative(s settings) (built, error) {
	b := built{repository: "weir-native", tag: s.Version}
	b.index = mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, platform := range s.Platforms {
		_, architecture, _ := strings.Cut(platform, "/")
		host, err := readNative(s, architecture)
		if err != nil {
			return b, err
		}
		files, err := layer([]entry{{"libweir.so", host, 0o644, 0}})
		if err != nil {
			return b, err
		}
		about := labels("weir-native", s.Version)
		about[envoysLabel] = nativeEnvoys
		image, err := assemble(files, &v1.ConfigFile{OS: "linux", Architecture: architecture,
			Created: v1.Time{Time: made()}, Config: v1.Config{Labels: about}})
		if err != nil {
			return b, err
		}
		text, err := listOfNative(s.Root, s.Version, host)
		if err != nil {
			return b, err
		}
		if err := b.describe(image, text); err != nil {
			return b, err
		}
		b.index = mutate.AppendManifests(b.index, mutate.IndexAddendum{Add: image, Descriptor: v1.Descriptor{
			Platform: &v1.Platform{OS: "linux", Architecture: architecture}}})
	}
	var err error
	b.digest, err = b.index.Digest()
	return b, err
}

// addNative adds the native host for a platform of Linux, and its materials. Envoy finds the file by
// its name, so the name says the version: Envoy does not read a file again that it has loaded.
func addNative(s settings, architecture string, f *folder) error {
	host, err := readNative(s, architecture)
	if err != nil {
		return err
	}
	name := fmt.Sprintf("libweir-%s-%s", s.Version, architecture)
	if err := f.add(name+".so", host); err != nil {
		return err
	}
	text, err := listOfNative(s.Root, s.Version, host)
	if err != nil {
		return err
	}
	return f.add(name+".spdx.json", text)
}

// listOfNative lists the materials of the filter, and Envoy's interface.
func listOfNative(root, version string, host []byte) ([]byte, error) {
	compiler, err := tinygoVersion(root)
	if err != nil {
		return nil, err
	}
	parts, err := ofFilter(root)
	if err != nil {
		return nil, err
	}
	pins, err := os.ReadFile(filepath.Join(root, "tools/native/go.mod"))
	if err != nil {
		return nil, err
	}
	pin := regexp.MustCompile(abiModule + ` (\S+)`).FindSubmatch(pins)
	if pin == nil {
		return nil, fmt.Errorf("tools/native/go.mod does not pin %s", abiModule)
	}
	parts = append(parts, component{Path: abiModule, Version: string(pin[1])})
	return materials("weir-native", version, sum(host), component{Path: tinygoModule, Version: compiler}, parts)
}
