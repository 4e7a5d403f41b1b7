// Package certs keeps certificates as their files are, so that they can be renewed while the
// process runs.
package certs

import (
	"bytes"
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"sync"
)

// Pair is a certificate with its key, from two files. Make one with Load. It is safe for concurrent
// use.
type Pair struct {
	files[tls.Certificate]
}

// Pool is a set of authorities, from one file. A certificate in it that is wrong is no authority,
// and all others count: a mistake keeps no authority alive that has been taken out. Make one with
// LoadPool. It is safe for concurrent use.
type Pool struct {
	files[x509.CertPool]
	admitted admitted
}

// Load reads a certificate and its key, both in PEM.
func Load(cert, key string) (*Pair, error) {
	parse := func(texts [][]byte) (*tls.Certificate, error, error) {
		pair, err := tls.X509KeyPair(texts[0], texts[1])
		return &pair, nil, err
	}
	p := &Pair{files[tls.Certificate]{paths: []string{cert, key}, parse: parse}}
	return p, p.read()
}

// LoadPool reads authorities in PEM. One that is wrong is an error.
func LoadPool(path string) (*Pool, error) {
	parse := func(texts [][]byte) (*x509.CertPool, error, error) { return parsePool(texts[0]) }
	p := &Pool{files: files[x509.CertPool]{paths: []string{path}, parse: parse}}
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
	// parse also says what is wrong with a part of the texts whose rest has a meaning.
	parse func(texts [][]byte) (value *T, wrong, err error)

	mu    sync.Mutex
	texts [][]byte
	value *T
	// wrong is what is wrong with the texts in use, seen are those of the last look.
	wrong   error
	seen    [][]byte
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
		log.Error("a certificate cannot be used: a wrong one among others admits no client; where none is right, "+
			"what was there before stays in use", "error", trouble)
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

// read takes over what has changed. Texts with a mistake count once two looks in a row have seen
// them, so that none is taken for one while it is being written.
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
		return f.wrong
	}
	value, wrong, err := f.parse(texts)
	seen := slices.EqualFunc(texts, f.seen, bytes.Equal)
	f.seen = texts
	if wrong = cmp.Or(err, wrong); wrong != nil {
		wrong = fmt.Errorf("%s: %w", f.paths[0], wrong)
	}
	if err != nil || wrong != nil && !seen && f.texts != nil {
		return wrong
	}
	f.texts, f.value, f.wrong = texts, value, wrong
	return wrong
}
