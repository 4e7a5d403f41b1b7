package settings

import (
	"bufio"
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"

	"github.com/weir-proxy/weir/controlplane/internal/auth"
)

const maxTokenFile = 1 << 20

func readFile(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxTokenFile+1))
	if err == nil && len(b) > maxTokenFile {
		err = fmt.Errorf("%s is larger than %d bytes", path, maxTokenFile)
	}
	return b, err
}

// readToken reads a file whose text, without the spaces around it, is a token.
func readToken(path string) (string, error) {
	b, err := readFile(path)
	return string(bytes.TrimSpace(b)), err
}

// keptToken reads the token in path, or makes one and keeps it there for its owner alone.
func keptToken(path string) (text string, made bool, err error) {
	text, err = readToken(path)
	if err == nil || !errors.Is(err, fs.ErrNotExist) {
		return text, false, err
	}
	text = rand.Text()
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return "", false, err
	}
	_, err = f.WriteString(text + "\n")
	return text, true, errors.Join(err, f.Close())
}

// tokens reads a file of further tokens: name, role and sum, separated by spaces; # starts a comment.
func (r *resolver) tokens(path string) (out auth.Tokens) {
	b, err := readFile(path)
	if err != nil {
		r.problem("--tokens-file (WEIR_TOKENS_FILE): %w", err)
		return nil
	}
	names := map[string]bool{}
	scanner := bufio.NewScanner(bytes.NewReader(b))
	scanner.Buffer(nil, maxTokenFile+1)
	for line := 1; scanner.Scan(); line++ {
		text, _, _ := strings.Cut(scanner.Text(), "#")
		fields := strings.Fields(text)
		if len(fields) == 0 {
			continue
		}
		token, err := parseToken(fields)
		if err == nil && names[token.Name] {
			err = fmt.Errorf("the name %s is taken", token.Name)
		}
		if err != nil {
			r.problem("%s: line %d: %w", path, line, err)
			continue
		}
		names[token.Name] = true
		out = append(out, token)
	}
	return out
}

func parseToken(fields []string) (auth.Token, error) {
	if len(fields) != 3 {
		return auth.Token{}, errors.New("must be a name, a role and the SHA-256 of the token")
	}
	role, err := auth.ParseRole(fields[1])
	if err != nil {
		return auth.Token{}, err
	}
	sum, err := hex.DecodeString(fields[2])
	if err != nil || len(sum) != sha256.Size {
		return auth.Token{}, errors.New("the third field must be 64 hexadecimal digits: printf %s TOKEN | sha256sum prints them")
	}
	return auth.Token{Name: fields[0], Role: role, Sum: [sha256.Size]byte(sum)}, nil
}
