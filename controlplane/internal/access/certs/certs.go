// Package certs reads certificates and passwords from files again when they change, so that they
// can be renewed while the process runs.
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

// Pair is a certificate with its key, from two files. Make a Pair with Load. It is safe for
// concurrent use.
type Pair struct {
	files[tls.Certificate]
}

// Pool is a set of authorities from one file. An invalid certificate in the file is ignored and the
// others count, so an error does not keep a removed authority valid. Make a Pool with LoadPool. It
// is safe for concurrent use.
type Pool struct {
	files[x509.CertPool]
	admitted admitted
}

// Load reads a certificate and its key, both in PEM.
func Load(cert, key string) (*Pair, error) {
	p := &Pair{files[tls.Certificate]{kind: "a certificate", paths: []string{cert, key}, parse: parsePair}}
	return p, p.readTexts(true)
}

// Current returns the certificate with its key, from the files or from their last valid texts.
func (p *Pair) Current(log *slog.Logger) *tls.Certificate { return p.current(log) }

// LoadPool reads authorities in PEM. It returns an error if one of them is invalid.
func LoadPool(path string) (*Pool, error) {
	parse := func(texts [][]byte) (*x509.CertPool, error, error) { return parsePool(texts[0]) }
	p := &Pool{files: files[x509.CertPool]{
		kind:  "a certificate",
		skips: "a wrong certificate of several counts as absent; if none is valid, ",
		paths: []string{path}, parse: parse,
	}}
	return p, p.readTexts(true)
}

// LoadRight loads, like LoadPool, the authorities of a server that this process calls. An invalid
// certificate among valid ones is ignored, as when a file is read again, and Trouble reports it.
func LoadRight(path string) (*Pool, error) {
	p, err := LoadPool(path)
	if p.value != nil {
		err = nil
	}
	return p, err
}

// Current returns the authorities, from the file or from its last valid text.
func (p *Pool) Current(log *slog.Logger) *x509.CertPool { return p.current(log) }

// These are the protocols that a listener speaks over TLS.
const (
	HTTP1 = "http/1.1"
	HTTP2 = "h2"
)

// Server returns the configuration of a TLS listener for a protocol. It shows the pair, and
// requires a client certificate of the pool unless clients is nil. The files are checked at each
// connection. If they become invalid, their previous content stays in force, which is logged once.
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

// files is a value that is read from one or more files.
type files[T any] struct {
	// kind names the value in messages, with its article. skips says which parts of the texts are
	// ignored, with a semicolon; empty if parse ignores none.
	kind  string
	skips string
	paths []string
	// parse returns the value of the texts. wrong is the error of a part of the texts that is
	// ignored.
	parse func(texts [][]byte) (value *T, wrong, err error)

	mu    sync.Mutex
	texts [][]byte
	value *T
	// wrong is the error of the texts in force. last is the error of the last read. seen are the
	// texts that the last look of Trouble saw.
	wrong, last error
	seen        [][]byte
	trouble     string
}

// current returns the value of the files, or of their last valid texts.
func (f *files[T]) current(log *slog.Logger) *T {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.readAndLog(log, false)
	return f.value
}

// Trouble reads the files and says why they cannot be used; empty if they can. It must be called at
// regular times, see readTexts.
func (f *files[T]) Trouble(log *slog.Logger) string {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.readAndLog(log, true)
	return f.trouble
}

// readAndLog reads the files and logs changes. regular is true for calls at regular times.
func (f *files[T]) readAndLog(log *slog.Logger, regular bool) {
	before, trouble := f.value, ""
	f.last = f.readTexts(regular)
	if f.last != nil {
		trouble = f.last.Error()
	}
	if trouble != "" && trouble != f.trouble {
		log.Error("cannot use "+f.kind+": "+f.skips+"the previous content of the file stays in use", "error", trouble)
	}
	f.trouble = trouble
	if f.value != before {
		log.Info(f.kind+" has changed and is in use", "files", f.paths)
	}
}

// readTexts puts changed texts into force. Texts with an error take effect only after two regular
// looks in a row have seen them, because a file may just be being written. Handshakes do not count
// as looks, because two of them can be closer together than two writes of one file.
func (f *files[T]) readTexts(regular bool) error {
	// Read the files. If one is missing, or none has changed, there is nothing to parse.
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
	// Parse them. If they are wrong for the first time, they may be half written: wait for the next
	// look.
	value, wrong, err := f.parse(texts)
	seen := regular && slices.EqualFunc(texts, f.seen, bytes.Equal)
	if regular {
		f.seen = texts
	}
	if err != nil {
		return f.withPaths(err)
	}
	if wrong != nil {
		wrong = f.withPaths(wrong)
		if !seen && f.texts != nil {
			return wrong
		}
	}
	f.texts, f.value, f.wrong = texts, value, wrong
	return wrong
}
