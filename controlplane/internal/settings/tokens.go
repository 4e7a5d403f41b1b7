package settings

import (
	"bytes"
	"errors"
	"io/fs"
	"maps"
	"os"

	"github.com/weir-proxy/weir/controlplane/internal/auth"
)

// readToken reads a file whose text, without the spaces around it, is a token.
func readToken(path string) (string, error) {
	b, err := auth.ReadFile(path)
	return string(bytes.TrimSpace(b)), err
}

// keptToken reads the token in path, or makes one and keeps it there for its owner alone.
func keptToken(path string) (text string, made bool, err error) {
	text, err = readToken(path)
	if err == nil || !errors.Is(err, fs.ErrNotExist) {
		return text, false, err
	}
	text = auth.NewSecret()
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return "", false, err
	}
	_, err = f.WriteString(text + "\n")
	return text, true, errors.Join(err, f.Close())
}

// missing are the roles that need a token of their own: those that are wanted and that no token in
// the file has.
func (r *resolver) missing(path string, wanted map[auth.Role]bool) map[auth.Role]bool {
	if path != "" {
		for _, t := range r.tokens(path) {
			wanted[t.Role] = false
		}
	}
	maps.DeleteFunc(wanted, func(_ auth.Role, missing bool) bool { return !missing })
	return wanted
}

func (r *resolver) tokens(path string) auth.Tokens {
	text, err := auth.ReadFile(path)
	if err != nil {
		r.problem("--tokens-file (WEIR_TOKENS_FILE): %w", err)
		return nil
	}
	tokens, problems := auth.ParseFile(text)
	for _, problem := range problems {
		r.problem("%s: %w", path, problem)
	}
	return tokens
}
