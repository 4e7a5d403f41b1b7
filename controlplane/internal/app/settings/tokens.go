package settings

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"

	"github.com/weir-proxy/weir/controlplane/internal/access/auth"
)

// readToken reads a file whose text, without the spaces around it, is a token.
func readToken(path string) (string, error) {
	b, err := auth.ReadFile(path)
	return string(bytes.TrimSpace(b)), err
}

// Made is a token that was made because none was given.
type Made struct {
	// Path is the file for the token.
	Path string
	text string
}

// keptToken reads the token in path, or makes a new token.
func keptToken(path string) (text string, made bool, err error) {
	text, err = readToken(path)
	if errors.Is(err, fs.ErrNotExist) {
		return auth.NewSecret(), true, nil
	}
	return text, false, err
}

// Keep writes the token, readable for its owner alone. It is for a control plane that holds its
// data directory. Otherwise the holder of the directory would not know the token.
func (m Made) Keep() error {
	f, err := os.OpenFile(m.Path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err == nil {
		_, err = f.WriteString(m.text + "\n")
		err = errors.Join(err, f.Close())
	}
	if err != nil {
		return fmt.Errorf("cannot keep the token that was made: %w", err)
	}
	return nil
}

// rolesWithoutToken returns the roles that need a new token: the wanted roles without a token in
// the file.
func (r *resolver) rolesWithoutToken(path string, wanted map[auth.Role]bool) map[auth.Role]bool {
	if path != "" {
		for _, t := range r.readTokens(path) {
			wanted[t.Role] = false
		}
	}
	maps.DeleteFunc(wanted, func(_ auth.Role, missing bool) bool { return !missing })
	return wanted
}

func (r *resolver) readTokens(path string) auth.Tokens {
	text, err := auth.ReadFile(path)
	if err != nil {
		r.addProblem("--tokens-file (WEIR_TOKENS_FILE): %w", err)
		return nil
	}
	tokens, problems := auth.ParseFile(text)
	for _, problem := range problems {
		r.addProblem("%s: %w", path, problem)
	}
	return tokens
}
