package redistest

import (
	"net"
	"strconv"
	"testing"

	"github.com/weir-proxy/weir/test/support/certtest"
)

// Certificates are files in PEM: an authority's, and of a server at 127.0.0.1 and a client that it
// vouches for.
type Certificates struct {
	CA                                           string
	ServerCert, ServerKey, ClientCert, ClientKey string
}

// MakeCertificates makes them for the length of the test.
func MakeCertificates(t testing.TB) Certificates {
	t.Helper()
	authority := certtest.New(t, "authority")
	server, client := authority.Issue(t.TempDir(), "server"), authority.Issue(t.TempDir(), "client")
	return Certificates{CA: authority.Path, ServerCert: server.Cert, ServerKey: server.Key, ClientCert: client.Cert,
		ClientKey: client.Key}
}

// StartTLS starts a server that also listens with TLS, at the address returned, and wants a client
// certificate there.
func StartTLS(t testing.TB, c Certificates, options ...string) (s *Server, addr string) {
	t.Helper()
	port := strconv.Itoa(freePort(t))
	s = Start(t, append([]string{
		"--tls-port", port, "--tls-ca-cert-file", c.CA, "--tls-cert-file", c.ServerCert, "--tls-key-file", c.ServerKey,
		"--tls-auth-clients", "yes",
	}, options...)...)
	return s, net.JoinHostPort("127.0.0.1", port)
}
