package main

import (
	"crypto/rand"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// tokenPrefix marks the admin tokens that make run makes, so that it never replaces, or shows, one that it did not make.
const tokenPrefix = "run-"

func newToken() string { return tokenPrefix + rand.Text() }

// adminToken returns the token of the last run if that is kept, else a new one, and notes it in dir for the next run.
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

// storeToken puts the token where the command line finds it. It reports false, and leaves the file alone, if that holds a
// token of another control plane.
func storeToken(path, token string) (stored bool, err error) {
	content, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, err
	}
	if text := strings.TrimSpace(string(content)); text != "" && !strings.HasPrefix(text, tokenPrefix) {
		return false, nil
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return false, err
	}
	return true, writeToken(path, token)
}

// writeToken replaces a file as a whole; nobody but the user may ever read it.
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
