// Package certs keeps certificates and passwords as their files are, so that they can be renewed
// while the process runs.
package certs

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"errors"
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
	p := &Pair{files[tls.Certificate]{kind: "a certificate", paths: []string{cert, key}, parse: parsePair}}
	return p, p.read(true)
}

// Current is the certificate with its key, as the files are now or were when they last made sense.
func (p *Pair) Current(log *slog.Logger) *tls.Certificate { return p.current(log) }

// LoadPool reads authorities in PEM. One that is wrong is an error.
func LoadPool(path string) (*Pool, error) {
	parse := func(texts [][]byte) (*x509.CertPool, error, error) { return parsePool(texts[0]) }
	p := &Pool{files: files[x509.CertPool]{kind: "a certificate", paths: []string{path}, parse: parse}}
	return p, p.read(true)
}

// LoadRight is LoadPool for authorities of a server that this process calls: a wrong one among
// others is absent and admits no server, as in a file that is read again, and Trouble reports it.
func LoadRight(path string) (*Pool, error) {
	p, err := LoadPool(path)
	if p.value != nil {
		err = nil
	}
	return p, err
}

// Current are the authorities, as the file is now or was when it last made sense.
func (p *Pool) Current(log *slog.Logger) *x509.CertPool { return p.current(log) }

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
	// kind is a word for the value, with its article.
	kind  string
	paths []string
	// parse also says what is wrong with a part of the texts whose rest has a meaning.
	parse func(texts [][]byte) (value *T, wrong, err error)

	mu    sync.Mutex
	texts [][]byte
	value *T
	// wrong is what is wrong with the texts in use, seen are those of the last look of Trouble, and
	// last is what was wrong when the files were read last.
	wrong, last error
	seen        [][]byte
	trouble     string
}

// current is what the files mean now, or meant when they last made sense.
func (f *files[T]) current(log *slog.Logger) *T {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.look(log, false)
	return f.value
}

// Trouble looks at the files, and says why they cannot be used as they are; empty if they can. It
// is for looks at regular times: see read.
func (f *files[T]) Trouble(log *slog.Logger) string {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.look(log, true)
	return f.trouble
}

func (f *files[T]) look(log *slog.Logger, regular bool) {
	before, trouble := f.value, ""
	f.last = f.read(regular)
	if f.last != nil {
		trouble = f.last.Error()
	}
	if trouble != "" && trouble != f.trouble {
		log.Error(f.kind+" cannot be used: a wrong one among others counts as absent; where none is right, "+
			"what was there before stays in use", "error", trouble)
	}
	f.trouble = trouble
	if f.value != before {
		log.Info(f.kind+" has changed and is in use", "files", f.paths)
	}
}

// read takes over what has changed. Texts with a mistake count once two regular looks in a row have
// seen them, so that none is taken for one while it is being written: two handshakes can be closer
// than two writes of one file.
func (f *files[T]) read(regular bool) error {
	texts, same := make([][]byte, len(f.paths)), f.texts != nil
	var lacking []error
	for i, path := range f.paths {
		var err error
		if texts[i], err = os.ReadFile(path); err != nil {
			lacking = append(lacking, &ofFile{i, err})
		}
		same = same && bytes.Equal(texts[i], f.texts[i])
	}
	switch {
	case lacking != nil:
		return errors.Join(lacking...)
	case same:
		return f.wrong
	}
	value, wrong, err := f.parse(texts)
	seen := regular && slices.EqualFunc(texts, f.seen, bytes.Equal)
	if regular {
		f.seen = texts
	}
	if err != nil {
		return f.placed(err)
	}
	if wrong != nil {
		wrong = f.placed(wrong)
		if !seen && f.texts != nil {
			return wrong
		}
	}
	f.texts, f.value, f.wrong = texts, value, wrong
	return wrong
}
