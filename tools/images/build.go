package main

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// A built image goes to one tag.
type built struct {
	repository, tag string
	digest          v1.Hash
	// index is nil but for images of several platforms; image is nil for those.
	index v1.ImageIndex
	image v1.Image
	// lists are the SBOMs, by the digest of the image that each is about.
	lists []list
}

// A list is an SBOM in SPDX.
type list struct {
	of      v1.Descriptor
	content []byte
}

// build makes all images.
func build(s settings) ([]built, error) {
	plane, err := buildControlPlane(s)
	if err != nil {
		return nil, err
	}
	filters, err := buildFilters(s)
	if err != nil {
		return nil, err
	}
	all := append([]built{plane}, filters...)
	if s.Native == "" {
		return all, nil
	}
	native, err := buildNative(s)
	return append(all, native), err
}

func buildControlPlane(s settings) (built, error) {
	dir, err := os.MkdirTemp("", "weir-images-")
	if err != nil {
		return built{}, err
	}
	defer os.RemoveAll(dir)
	// Make an image for each platform, with its SBOM.
	b := built{repository: "weir", tag: s.Version}
	b.index = mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, platform := range s.Platforms {
		path := filepath.Join(dir, strings.ReplaceAll(platform, "/", "-"))
		if err := compile(s.Root, s.Version, platform, path); err != nil {
			return b, err
		}
		binary, err := os.ReadFile(path)
		if err != nil {
			return b, err
		}
		_, architecture, _ := strings.Cut(platform, "/")
		image, err := controlPlane(binary, s.Version, architecture)
		if err != nil {
			return b, err
		}
		text, err := listOfBinary(path, "weir", s.Version)
		if err != nil {
			return b, err
		}
		if err := b.describe(image, text); err != nil {
			return b, err
		}
		b.index = mutate.AppendManifests(b.index, mutate.IndexAddendum{Add: image, Descriptor: v1.Descriptor{
			Platform: &v1.Platform{OS: "linux", Architecture: architecture}}})
	}
	b.digest, err = b.index.Digest()
	return b, err
}

// describe adds the SBOM of an image.
func (b *built) describe(image v1.Image, text []byte) error {
	digest, err := image.Digest()
	if err != nil {
		return err
	}
	size, err := image.Size()
	if err != nil {
		return err
	}
	of := v1.Descriptor{MediaType: types.OCIManifestSchema1, Digest: digest, Size: size}
	b.lists = append(b.lists, list{of, text})
	return nil
}

func buildFilters(s settings) (all []built, err error) {
	module, err := os.ReadFile(s.Module)
	if err != nil {
		return nil, fmt.Errorf("%w: make build makes it", err)
	}
	text, err := listOfFilter(s.Root, s.Version, module)
	if err != nil {
		return nil, err
	}
	forms := []struct {
		suffix string
		make   func(module []byte, version string) (v1.Image, error)
	}{{"", filterImage}, {"-artifact", filterArtifact}}
	for _, form := range forms {
		b := built{repository: "weir-filter", tag: s.Version + form.suffix}
		if b.image, err = form.make(module, s.Version); err != nil {
			return nil, err
		}
		if b.digest, err = b.image.Digest(); err != nil {
			return nil, err
		}
		if err := b.describe(b.image, text); err != nil {
			return nil, err
		}
		all = append(all, b)
	}
	return all, nil
}

func listOfBinary(path, name, version string) ([]byte, error) {
	binary, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	goVersion, parts, err := ofBinary(path)
	if err != nil {
		return nil, err
	}
	return materials(name, version, sum(binary), component{Path: "stdlib", Version: strings.TrimPrefix(goVersion, "go")}, parts)
}

func listOfFilter(root, version string, module []byte) ([]byte, error) {
	compiler, err := tinygoVersion(root)
	if err != nil {
		return nil, err
	}
	parts, err := ofFilter(root)
	if err != nil {
		return nil, err
	}
	return materials("weir-filter", version, sum(module), component{Path: tinygoModule, Version: compiler}, parts)
}

const tinygoModule = "github.com/tinygo-org/tinygo"

// tinygoVersion returns the version of the filter's compiler that the tree pins.
func tinygoVersion(root string) (string, error) {
	pins, err := os.ReadFile(filepath.Join(root, "tools/tinygo/go.mod"))
	if err != nil {
		return "", err
	}
	pin := regexp.MustCompile(tinygoModule + ` (\S+)`).FindSubmatch(pins)
	if pin == nil {
		return "", fmt.Errorf("tools/tinygo/go.mod does not pin TinyGo")
	}
	return string(pin[1]), nil
}

func sum(content []byte) string {
	s := sha256.Sum256(content)
	return hex.EncodeToString(s[:])
}

// writeLayout writes the images as an OCI layout, which other tools read, and each SBOM beside it.
func writeLayout(dir string, images []built) error {
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	path, err := layout.Write(dir, empty.Index)
	if err != nil {
		return err
	}
	for _, b := range images {
		name := layout.WithAnnotations(map[string]string{"org.opencontainers.image.ref.name": b.repository + ":" + b.tag})
		if b.index != nil {
			err = path.AppendIndex(b.index, name)
		} else {
			err = path.AppendImage(b.image, name)
		}
		if err != nil {
			return err
		}
		for _, l := range b.lists {
			file := filepath.Join(dir, b.repository+"-"+l.of.Digest.Hex[:12]+".spdx.json")
			if err := os.WriteFile(file, l.content, 0o644); err != nil {
				return err
			}
		}
	}
	return nil
}
