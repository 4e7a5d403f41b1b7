package main

import (
	"bytes"
	"crypto"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/secure-systems-lab/go-securesystemslib/encrypted"
	"github.com/sigstore/sigstore/pkg/cryptoutils"
	"github.com/sigstore/sigstore/pkg/signature"
	"github.com/sigstore/sigstore/pkg/signature/payload"
)

// Names that cosign uses in its signatures.
const (
	signedType      types.MediaType = "application/vnd.dev.cosign.simplesigning.v1+json"
	signatureInside                 = "dev.cosignproject.cosign/signature"
)

// loadSigner reads the private key of a file, or else of $COSIGN_PRIVATE_KEY; without either nothing
// is signed, and the signer is nil. $COSIGN_PASSWORD opens a key as cosign makes it.
func loadSigner(path string) (signature.Signer, error) {
	text, from := []byte(os.Getenv("COSIGN_PRIVATE_KEY")), "$COSIGN_PRIVATE_KEY"
	if path != "" {
		read, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		text, from = read, path
	}
	if len(text) == 0 {
		return nil, nil
	}
	key, err := privateKey(text)
	if err != nil {
		return nil, fmt.Errorf("the key of %s: %w", from, err)
	}
	return signature.LoadSigner(key, crypto.SHA256)
}

func privateKey(text []byte) (crypto.PrivateKey, error) {
	block, _ := pem.Decode(text)
	if block == nil {
		return nil, errors.New("is no PEM")
	}
	if !strings.HasPrefix(block.Type, "ENCRYPTED ") {
		return cryptoutils.UnmarshalPEMToPrivateKey(text, cryptoutils.SkipPassword)
	}
	der, err := encrypted.Decrypt(block.Bytes, []byte(os.Getenv("COSIGN_PASSWORD")))
	if err != nil {
		return nil, fmt.Errorf("$COSIGN_PASSWORD does not open it: %w", err)
	}
	return x509.ParsePKCS8PrivateKey(der)
}

// signatureOf returns the image in which cosign keeps the signature of an image. identity is the
// reference that the signed image is pushed as.
func signatureOf(signed name.Digest, identity string, signer signature.Signer) (v1.Image, error) {
	statement, err := json.Marshal(payload.Cosign{Image: signed, ClaimedIdentity: identity})
	if err != nil {
		return nil, err
	}
	text, err := sign(statement, signer)
	if err != nil {
		return nil, err
	}
	image := mutate.ConfigMediaType(base(), types.OCIConfigJSON)
	return mutate.Append(image, mutate.Addendum{Layer: static.NewLayer(statement, signedType),
		Annotations: map[string]string{signatureInside: text}})
}

// sign returns the signature of a text in base64, as cosign sign-blob writes it.
func sign(text []byte, signer signature.Signer) (string, error) {
	raw, err := signer.SignMessage(bytes.NewReader(text))
	return base64.StdEncoding.EncodeToString(raw), err
}
