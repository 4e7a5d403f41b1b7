// Package certs keeps certificates as their files are, so that they can be renewed while the
// process runs.
package certs

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
)

// Pair is a certificate with its key, from two files. Make one with Load. It is safe for concurrent
// use.
type Pair struct {
	files[tls.Certificate]
}

// Pool is a set of authorities, from one file. Make one with LoadPool. It is safe for concurrent
// use.
type Pool struct {
	files[x509.CertPool]
}

// Load reads a certificate and its key, both in PEM.
func Load(cert, key string) (*Pair, error) {
	parse := func(texts [][]byte) (*tls.Certificate, error) {
		pair, err := tls.X509KeyPair(texts[0], texts[1])
		return &pair, err
	}
	p := &Pair{files[tls.Certificate]{paths: []string{cert, key}, parse: parse}}
	return p, p.read()
}

// LoadPool reads authorities in PEM.
func LoadPool(path string) (*Pool, error) {
	p := &Pool{files[x509.CertPool]{paths: []string{path}, parse: func(texts [][]byte) (*x509.CertPool, error) {
		pool := x509.NewCertPool()
		if !pool.AppendCertsFromPEM(texts[0]) {
			return nil, errors.New("it holds no certificate in PEM")
		}
		return pool, nil
	}}}
	return p, p.read()
}

// The protocols that a listener speaks over TLS.
const (
	HTTP1 = "http/1.1"
	HTTP2 = "h2"
)

// Server is the configuration of a listener that speaks a protocol, shows the pair, and wants from
// its clients a certificate of the pool unless that is nil. Files are looked at for each
// connection; while they are wrong, what they held before stays, which the log says once.
func Server(protocol string, pair *Pair, clients *Pool, log *slog.Logger) *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS12,
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
			config := &tls.Config{
				MinVersion: tls.VersionTLS12, NextProtos: []string{protocol},
				Certificates: []tls.Certificate{*pair.current(log)},
			}
			if clients != nil {
				config.ClientAuth, config.ClientCAs = tls.RequireAndVerifyClientCert, clients.current(log)
			}
			return config, nil
		},
	}
}

// files is what some files mean together.
type files[T any] struct {
	paths []string
	parse func(texts [][]byte) (*T, error)

	mu      sync.Mutex
	texts   [][]byte
	value   *T
	trouble string
}

// current is what the files mean now, or meant when they last made sense.
func (f *files[T]) current(log *slog.Logger) *T {
	f.mu.Lock()
	defer f.mu.Unlock()
	before, trouble := f.value, ""
	if err := f.read(); err != nil {
		trouble = err.Error()
	}
	if trouble != "" && trouble != f.trouble {
		log.Error("a certificate cannot be used; what was there before stays in use", "error", trouble)
	}
	f.trouble = trouble
	if f.value != before {
		log.Info("a certificate has changed and is in use", "files", f.paths)
	}
	return f.value
}

// Trouble looks at the files, and says why they cannot be used as they are; empty if they can.
func (f *files[T]) Trouble(log *slog.Logger) string {
	f.current(log)
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.trouble
}

// read takes over what has changed.
func (f *files[T]) read() error {
	texts, same := make([][]byte, len(f.paths)), f.texts != nil
	for i, path := range f.paths {
		var err error
		texts[i], err = os.ReadFile(path)
		if err != nil {
			return err
		}
		same = same && bytes.Equal(texts[i], f.texts[i])
	}
	if same {
		return nil
	}
	value, err := f.parse(texts)
	if err != nil {
		return fmt.Errorf("%s: %w", f.paths[0], err)
	}
	f.texts, f.value = texts, value
	return nil
}
