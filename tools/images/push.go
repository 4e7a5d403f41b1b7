package main

import (
	"fmt"
	"os"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/sigstore/sigstore/pkg/signature"
)

// spdxType is the type of SBOMs, as artifacts that refer to their image.
const spdxType types.MediaType = "application/spdx+json"

// push sends images to a registry, each with its SBOM and, if there is a signer, its signature. It
// uses the users and passwords of docker login.
func push(target string, images []built, signer signature.Signer) error {
	for _, b := range images {
		tag, err := name.NewTag(fmt.Sprintf("%s/%s:%s", target, b.repository, b.tag))
		if err != nil {
			return err
		}
		if err := pushOne(tag, b, signer); err != nil {
			return fmt.Errorf("%s: %w", tag, err)
		}
		fmt.Fprintf(os.Stderr, "pushed %s@%s\n", tag, b.digest)
	}
	return nil
}

func pushOne(tag name.Tag, b built, signer signature.Signer) error {
	login := remote.WithAuthFromKeychain(authn.DefaultKeychain)
	// Push the image, or the index of all platforms.
	var err error
	if b.index != nil {
		err = remote.WriteIndex(tag, b.index, login)
	} else {
		err = remote.Write(tag, b.image, login)
	}
	if err != nil {
		return err
	}
	// Push its SBOMs.
	digests := []v1.Hash{b.digest}
	for _, l := range b.lists {
		artifact, err := artifactOf(l)
		if err != nil {
			return err
		}
		digest, err := artifact.Digest()
		if err != nil {
			return err
		}
		if err := remote.Write(tag.Context().Digest(digest.String()), artifact, login); err != nil {
			return err
		}
		if l.of.Digest != b.digest {
			digests = append(digests, l.of.Digest)
		}
	}
	// Sign the image and each image that an SBOM describes.
	if signer == nil {
		return nil
	}
	for _, digest := range digests {
		image, err := signatureOf(tag.Context().Digest(digest.String()), tag.String(), signer)
		if err != nil {
			return err
		}
		at := tag.Context().Tag(digest.Algorithm + "-" + digest.Hex + ".sig")
		if err := remote.Write(at, image, login); err != nil {
			return err
		}
	}
	return nil
}

// artifactOf returns an SBOM as an artifact that refers to its image: oras discover and cosign find
// it.
func artifactOf(l list) (v1.Image, error) {
	image, err := mutate.Append(mutate.ConfigMediaType(base(), spdxType),
		mutate.Addendum{Layer: static.NewLayer(l.content, spdxType)})
	if err != nil {
		return nil, err
	}
	return mutate.Subject(image, l.of).(v1.Image), nil
}
