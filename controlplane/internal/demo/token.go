package demo

import (
	"crypto/rand"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// tokenPrefix marks the admin tokens that a demo makes, so that it never replaces or shows a token
// of other origin.
const tokenPrefix = "run-"

func newToken() string { return tokenPrefix + rand.Text() }

// adminToken returns the token of the last run if it was kept, else a new token, and stores it in
// dir for the next run.
func adminToken(dir string, keep bool) (string, error) {
	path := filepath.Join(dir, "token")
	if keep {
		content, err := os.ReadFile(path)
		if err == nil && strings.HasPrefix(string(content), tokenPrefix) {
			return strings.TrimSpace(string(content)), nil
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return "", err
		}
	}
	token := newToken()
	return token, writeToken(path, token)
}

// storedToken is the file in which the command line finds the token, with its earlier content.
type storedToken struct {
	path, token, before string
	// stored is false if the file holds a token of another control plane, which stays.
	stored bool
}

// storeToken puts the token where the command line finds it, unless another control plane's is
// there.
func storeToken(path, token string) (s storedToken, err error) {
	s = storedToken{path: path, token: token}
	s.before, err = readToken(path)
	if err != nil {
		return s, err
	}
	if s.before != "" && !strings.HasPrefix(s.before, tokenPrefix) {
		return s, nil
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return s, err
	}
	s.stored = true
	return s, writeToken(path, token)
}

// putBack restores the earlier content, like the token of another run, unless the file has changed
// meanwhile. If that fails the file stays unchanged: the run is over.
func (s storedToken) putBack() {
	now, err := readToken(s.path)
	switch {
	case !s.stored || err != nil || now != s.token:
	case s.before == "":
		_ = os.Remove(s.path)
	default:
		_ = writeToken(s.path, s.before)
	}
}

// readToken returns a file's token; an empty text if there is no file.
func readToken(path string) (string, error) {
	content, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return strings.TrimSpace(string(content)), err
}

// writeToken replaces a file as a whole; only the user may ever read it.
func writeToken(path, token string) error {
	file, err := os.CreateTemp(filepath.Dir(path), ".token-*") // made with mode 0600
	if err != nil {
		return err
	}
	defer os.Remove(file.Name())
	_, err = file.WriteString(token + "\n")
	if err := errors.Join(err, file.Close()); err != nil {
		return err
	}
	return os.Rename(file.Name(), path)
}
