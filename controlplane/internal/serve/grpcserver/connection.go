package grpcserver

import (
	"context"
	"crypto/x509"
	"net"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"

	"github.com/weir-proxy/weir/controlplane/internal/access"
)

// remembering are credentials that keep the connection. A call with a valid token can then mark its
// connection.
type remembering struct {
	credentials.TransportCredentials
}

// ServerHandshake implements credentials.TransportCredentials.
func (r remembering) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	secured, info, err := r.TransportCredentials.ServerHandshake(raw)
	of := caller{address: access.Network(raw.RemoteAddr().String()), conn: raw}
	if secure, ok := info.(credentials.TLSInfo); ok && len(secure.State.PeerCertificates) > 0 {
		of.subject = secure.State.PeerCertificates[0].Subject.String()
		of.chain = secure.State.PeerCertificates
	}
	return secured, remembered{info, of}, err
}

// Clone implements credentials.TransportCredentials.
func (r remembering) Clone() credentials.TransportCredentials {
	return remembering{r.TransportCredentials.Clone()}
}

// remembered is the other end of a connection. It is found out once for all calls of the
// connection.
type remembered struct {
	credentials.AuthInfo
	caller caller
}

// caller is the maker of a call, as far as the connection shows.
type caller struct {
	// address is the network address of the other end.
	address string
	// subject is the subject of the certificate; empty without a certificate.
	subject string
	// chain begins with the certificate.
	chain []*x509.Certificate
	conn  net.Conn
}

func callerOf(ctx context.Context) caller {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return caller{}
	}
	if info, ok := p.AuthInfo.(remembered); ok {
		return info.caller
	}
	return caller{address: access.Network(p.Addr.String())}
}

// source identifies the caller by facts that it cannot invent, with the name of its token.
func (c caller) source(token string) string { return token + "\x00" + c.address + "\x00" + c.subject }
