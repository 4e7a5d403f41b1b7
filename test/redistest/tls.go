package redistest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"
)

// Certificates are files in PEM: an authority's, and of a server at 127.0.0.1 and a client that it vouches for.
type Certificates struct {
	CA                                           string
	ServerCert, ServerKey, ClientCert, ClientKey string
}

// MakeCertificates makes them for the length of the test.
func MakeCertificates(t testing.TB) Certificates {
	t.Helper()
	dir := t.TempDir()
	ca := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "authority"}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
	}
	caFile, _, caKey := certificate(t, dir, ca, ca, nil)
	leaf := func(serial int64, name string) (cert, key string) {
		template := &x509.Certificate{
			SerialNumber: big.NewInt(serial), Subject: pkix.Name{CommonName: name}, NotBefore: ca.NotBefore, NotAfter: ca.NotAfter,
			IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, KeyUsage: x509.KeyUsageDigitalSignature,
			ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		}
		cert, key, _ = certificate(t, dir, template, ca, caKey)
		return cert, key
	}
	c := Certificates{CA: caFile}
	c.ServerCert, c.ServerKey = leaf(2, "server")
	c.ClientCert, c.ClientKey = leaf(3, "client")
	return c
}

// certificate writes a certificate and its key, signed by its parent's key or, without one, by its own.
func certificate(t testing.TB, dir string, template, parent *x509.Certificate, by *ecdsa.PrivateKey) (cert, key string, own *ecdsa.PrivateKey) {
	t.Helper()
	own, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	if by == nil {
		by = own
	}
	raw, err := x509.CreateCertificate(rand.Reader, template, parent, &own.PublicKey, by)
	if err != nil {
		t.Fatal(err)
	}
	rawKey, err := x509.MarshalECPrivateKey(own)
	if err != nil {
		t.Fatal(err)
	}
	write := func(kind, name string, raw []byte) string {
		path := filepath.Join(dir, template.Subject.CommonName+name)
		if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: raw}), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	return write("CERTIFICATE", ".pem", raw), write("EC PRIVATE KEY", ".key", rawKey), own
}

// StartTLS starts a server that also listens with TLS, at the address returned, and wants a client certificate there.
func StartTLS(t testing.TB, c Certificates, options ...string) (s *Server, addr string) {
	t.Helper()
	port := strconv.Itoa(freePort(t))
	s = Start(t, append([]string{
		"--tls-port", port, "--tls-ca-cert-file", c.CA, "--tls-cert-file", c.ServerCert, "--tls-key-file", c.ServerKey, "--tls-auth-clients", "yes",
	}, options...)...)
	return s, net.JoinHostPort("127.0.0.1", port)
}
