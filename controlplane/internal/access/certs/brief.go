package certs

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"strings"
)

// ofFile is an error in one of several files.
type ofFile struct {
	index int
	err   error
}

func (e *ofFile) Error() string { return e.err.Error() }

// Unwrap returns the error.
func (e *ofFile) Unwrap() error { return e.err }

// withPaths adds the file names to the errors of parse. An error without a file belongs to the
// first file.
func (f *files[T]) withPaths(err error) error {
	parts := filesOf(err)
	if len(parts) == 0 {
		parts = []*ofFile{{0, err}}
	}
	all := make([]error, len(parts))
	for i, part := range parts {
		all[i] = &ofFile{part.index, fmt.Errorf("%s: %w", f.paths[part.index], part.err)}
	}
	return errors.Join(all...)
}

// filesOf returns the errors inside err that belong to a file.
func filesOf(err error) []*ofFile {
	switch e := err.(type) {
	case *ofFile:
		return []*ofFile{e}
	case interface{ Unwrap() []error }:
		var all []*ofFile
		for _, one := range e.Unwrap() {
			all = append(all, filesOf(one)...)
		}
		return all
	}
	return nil
}

// parsePair reads a certificate with its intermediates, and its key. Each error belongs to the file
// that has it.
func parsePair(texts [][]byte) (pair *tls.Certificate, wrong, err error) {
	both, err := tls.X509KeyPair(texts[0], texts[1])
	if err == nil {
		return &both, nil, nil
	}
	var all []error
	for i, kind := range []string{"CERTIFICATE", "PRIVATE KEY"} {
		if better := wrongBlock(texts[i], kind); better != nil {
			all = append(all, &ofFile{i, better})
		}
	}
	if all == nil {
		all = append(all, err) // The certificate and the key do not fit.
	}
	return nil, nil, errors.Join(all...)
}

// wrongBlock says which block of a PEM text is damaged, or that there is no block of the kind.
func wrongBlock(text []byte, kind string) error {
	found := false
	for at := bytes.Index(text, begin); at >= 0; {
		// Cut the text at the beginning of the next block.
		rest := text[at:]
		next := bytes.Index(rest[1:], begin) + 1
		if next > 0 {
			rest = rest[:next]
		}
		line := 1 + bytes.Count(text[:at], []byte("\n"))
		// Decode the block.
		block, _ := pem.Decode(rest)
		if block == nil {
			return &LineError{line, errNoBlock}
		}
		if strings.HasSuffix(block.Type, kind) {
			found = true
		}
		if block.Type == "CERTIFICATE" {
			if _, err := x509.ParseCertificate(block.Bytes); err != nil {
				return &LineError{line, err}
			}
		}
		if next == 0 {
			break
		}
		at += next
	}
	if !found {
		return fmt.Errorf("it holds no %s in PEM", kind)
	}
	return nil
}

var errNoBlock = errors.New("is no block of PEM: a line of it is missing or damaged")

// Secret is the text of a file, without surrounding spaces. Make a Secret with LoadSecret. It is
// safe for concurrent use.
type Secret struct {
	files[string]
}

// LoadSecret reads a file with one line of text.
func LoadSecret(path string) (*Secret, error) {
	s := &Secret{files[string]{kind: "a password", paths: []string{path}, parse: parseSecret}}
	return s, s.readTexts(true)
}

// Current returns the text of the file, or its last valid text.
func (s *Secret) Current(log *slog.Logger) string { return *s.current(log) }

// parseSecret checks the text of a secret.
func parseSecret(texts [][]byte) (secret *string, wrong, err error) {
	text := strings.TrimSpace(string(texts[0]))
	first, more, several := strings.Cut(text, "\n")
	switch {
	case text == "":
		return nil, nil, errors.New("it is empty")
	case several:
		end := len(texts[0]) - len(bytes.TrimLeft(texts[0], " \t\r\n")) + len(first)
		end += 1 + len(more) - len(strings.TrimLeft(more, " \t\r\n"))
		return nil, nil, &LineError{1 + bytes.Count(texts[0][:end], []byte("\n")),
			errors.New("a password is one line, and here is a second line")}
	case strings.ContainsFunc(text, func(r rune) bool { return r < ' ' }):
		return nil, nil, errors.New("it holds control characters")
	}
	return &text, nil, nil
}

// Brief returns the trouble of each file, without anything of its content. It is empty for valid
// files.
func (f *files[T]) Brief(log *slog.Logger) []string {
	f.Trouble(log)
	f.mu.Lock()
	defer f.mu.Unlock()
	briefs := make([]string, len(f.paths))
	for _, part := range filesOf(f.last) {
		switch lines := strings.Trim(fmt.Sprint(linesOf(part)), "[]"); {
		case lines == "":
			briefs[part.index] = "not usable, so its previous content is used: the log says why"
		case f.last == f.wrong:
			briefs[part.index] = "wrong in line " + lines + ", whose certificate counts as absent: the log says why"
		default:
			briefs[part.index] = "wrong in line " + lines + ", so its previous content is used: the log says why"
		}
	}
	return briefs
}

// linesOf returns the first ten lines that an error names.
func linesOf(err error) (lines []int) {
	if line, ok := err.(*LineError); ok {
		return []int{line.Line}
	}
	switch e := err.(type) {
	case interface{ Unwrap() []error }:
		for _, one := range e.Unwrap() {
			lines = append(lines, linesOf(one)...)
		}
	case interface{ Unwrap() error }:
		lines = linesOf(e.Unwrap())
	}
	return lines[:min(len(lines), 10)]
}
