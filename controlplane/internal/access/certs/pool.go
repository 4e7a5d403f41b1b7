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

// LineError is the error of a certificate in a file.
type LineError struct {
	// Line is the line at which the certificate begins, counted from 1.
	Line int
	Err  error
}

func (e *LineError) Error() string { return fmt.Sprintf("line %d: %v", e.Line, e.Err) }

// Unwrap returns the error.
func (e *LineError) Unwrap() error { return e.Err }

var begin = []byte("-----BEGIN ")

// parsePool reads authorities in PEM. wrong lists the invalid authorities, and err is set if none
// is valid.
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

// parseOne reads one certificate.
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

// mostAdmitted is the maximum number of client certificates that are remembered.
const mostAdmitted = 100_000

// admitted remembers which client certificates the authorities have issued.
type admitted struct {
	sync.Mutex
	by    *x509.CertPool
	known map[[sha256.Size]byte]bool
}

// Admits reports whether a current authority of the file has issued a client's certificate, which
// is the first of chain. It is called for each request, because the handshake checks this only once
// and a connection can be open for months.
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
	admits = isIssued(by, chain) // Without the lock, because all requests wait for it.
	a.Lock()
	defer a.Unlock()
	if a.by == by {
		a.known[sum] = admits
	}
	return admits
}

// isIssued reports whether an authority of the pool has issued the first certificate of the chain.
func isIssued(by *x509.CertPool, chain []*x509.Certificate) bool {
	between := x509.NewCertPool()
	for _, c := range chain[1:] {
		between.AddCert(c)
	}
	_, err := chain[0].Verify(x509.VerifyOptions{
		Roots: by, Intermediates: between, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
	return err == nil
}

// Guard returns a handler that serves only connections whose client the pool still admits. A nil
// pool admits all.
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

// Removed is the answer to a client on an open connection that could not open a new connection.
const Removed = "the authority of this client's certificate is accepted no longer"
