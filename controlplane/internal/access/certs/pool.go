package certs

import (
	"bytes"
	"crypto/sha256"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"sync"
)

// LineError is a certificate in a file that is wrong.
type LineError struct {
	// Line is where it begins, counted from 1.
	Line int
	Err  error
}

func (e *LineError) Error() string { return fmt.Sprintf("line %d: %v", e.Line, e.Err) }

// Unwrap is why it is wrong.
func (e *LineError) Unwrap() error { return e.Err }

var begin = []byte("-----BEGIN ")

// parsePool reads authorities in PEM: wrong are those that are none, and err that there is none.
func parsePool(text []byte) (pool *x509.CertPool, wrong, err error) {
	pool = x509.NewCertPool()
	count, problems := 0, []error(nil)
	for at := bytes.Index(text, begin); at >= 0; {
		rest := text[at:]
		next := bytes.Index(rest[1:], begin) + 1
		if next > 0 {
			rest = rest[:next]
		}
		cert, err := parseOne(rest)
		if err != nil {
			problems = append(problems, &LineError{1 + bytes.Count(text[:at], []byte("\n")), err})
		} else {
			pool.AddCert(cert)
			count++
		}
		if next == 0 {
			break
		}
		at += next
	}
	if count == 0 {
		return nil, nil, errors.Join(append(problems, errors.New("it holds no certificate in PEM"))...)
	}
	return pool, errors.Join(problems...), nil
}

func parseOne(text []byte) (*x509.Certificate, error) {
	block, _ := pem.Decode(text)
	switch {
	case block == nil:
		return nil, errNoBlock
	case block.Type != "CERTIFICATE":
		return nil, fmt.Errorf("is a %s and no CERTIFICATE", block.Type)
	}
	return x509.ParseCertificate(block.Bytes)
}

// mostAdmitted bounds the certificates of clients that are remembered.
const mostAdmitted = 100_000

// admitted are the certificates of clients that authorities have issued.
type admitted struct {
	sync.Mutex
	by    *x509.CertPool
	known map[[sha256.Size]byte]bool
}

// Admits reports whether an authority that is in the file now has issued the certificate that a
// client has shown, which is the first of chain. The handshake asks this once, and a connection can
// be open for months.
func (p *Pool) Admits(chain []*x509.Certificate) bool {
	if len(chain) == 0 {
		return false
	}
	p.mu.Lock()
	by := p.value
	p.mu.Unlock()
	a, sum := &p.admitted, sha256.Sum256(chain[0].Raw)
	a.Lock()
	if a.by != by || len(a.known) >= mostAdmitted {
		a.by, a.known = by, map[[sha256.Size]byte]bool{}
	}
	admits, known := a.known[sum]
	a.Unlock()
	if known {
		return admits
	}
	admits = issued(by, chain) // Without the lock, for which all requests wait.
	a.Lock()
	defer a.Unlock()
	if a.by == by {
		a.known[sum] = admits
	}
	return admits
}

// issued reports whether an authority of a pool has issued the first certificate of a chain.
func issued(by *x509.CertPool, chain []*x509.Certificate) bool {
	between := x509.NewCertPool()
	for _, c := range chain[1:] {
		between.AddCert(c)
	}
	_, err := chain[0].Verify(x509.VerifyOptions{
		Roots: by, Intermediates: between, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
	return err == nil
}

// Guard has a handler serve only requests on connections whose clients the pool still admits, all
// if the pool is nil.
func (p *Pool) Guard(next http.Handler) http.Handler {
	if p == nil {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.TLS == nil || !p.Admits(r.TLS.PeerCertificates) {
			w.Header().Set("Connection", "close")
			http.Error(w, Removed, http.StatusForbidden)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// Removed is said to a client on an open connection that could not open one now.
const Removed = "the authority of this client's certificate is accepted no longer"
