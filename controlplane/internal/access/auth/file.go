package auth

import (
	"bufio"
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"
)

// MaxTokens is the maximum number of tokens in a file: each request is compared with all of them.
const MaxTokens = 1000

const (
	// prefix lets scanners for published secrets recognise a token.
	prefix     = "weir_"
	secretSize = 32
	sumPrefix  = "sha256:"
)

var tokenName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._@:/+-]{0,63}$`)

// NewSecret makes the text of a new token from 256 random bits.
func NewSecret() string {
	var b [secretSize]byte
	rand.Read(b[:]) // It never fails.
	return prefix + base64.RawURLEncoding.EncodeToString(b[:])
}

// Line returns the line for the token in a tokens file.
func (t Token) Line() string {
	line := fmt.Sprintf("%s %s %s%x", t.Name, t.Role, sumPrefix, t.Sum)
	if !t.Expires.IsZero() {
		line += " " + t.Expires.UTC().Format(time.RFC3339)
	}
	return line
}

// LineError is the error in a line of a tokens file.
type LineError struct {
	Line int
	Err  error
}

// Error returns the line and the error. The text may contain a secret that was put into the wrong
// field.
func (e *LineError) Error() string { return fmt.Sprintf("line %d: %v", e.Line, e.Err) }

// Unwrap returns the error.
func (e *LineError) Unwrap() error { return e.Err }

// errEmpty is the problem of an empty file. It is refused because a tool that truncates the file
// before it writes it would lock every caller out for that moment.
var errEmpty = errors.New("the file is empty: to have no tokens in it, leave a comment")

// ParseFile reads a tokens file. Each line is a token: name, role, sum and, if it expires, the
// time. # starts a comment. Several tokens may have one name; then they must have the same role. It
// returns the tokens of the valid lines. An empty file is a problem, but a file with only comments
// is valid.
func ParseFile(text []byte) (tokens Tokens, problems []error) {
	roles, sums := map[string]Role{}, map[[sha256.Size]byte]bool{}
	scanner := bufio.NewScanner(bytes.NewReader(text))
	scanner.Buffer(nil, len(text)+1)
	for line := 1; scanner.Scan(); line++ {
		// Read the line without its comment.
		entry, _, _ := strings.Cut(scanner.Text(), "#")
		fields := strings.Fields(entry)
		if len(fields) == 0 {
			continue
		}
		t, err := parseToken(fields)
		// Check it against the lines before.
		switch role, known := roles[t.Name]; {
		case err != nil:
		case known && role != t.Role:
			err = fmt.Errorf("%s has the role %s already: tokens of one name have one role", t.Name, role)
		case sums[t.Sum]:
			err = errors.New("this token is in the file already")
		}
		if err != nil {
			problems = append(problems, &LineError{line, err})
			continue
		}
		roles[t.Name], sums[t.Sum] = t.Role, true
		tokens = append(tokens, t)
	}
	// Check the file as a whole.
	if len(bytes.TrimSpace(text)) == 0 {
		problems = append(problems, errEmpty)
	}
	if len(tokens) > MaxTokens {
		problems = append(problems, fmt.Errorf("there are %d tokens; at most %d are allowed", len(tokens), MaxTokens))
		tokens = tokens[:MaxTokens]
	}
	return tokens, problems
}

// NewToken checks the parts of a token.
func NewToken(name, role string, sum [sha256.Size]byte, expires time.Time) (Token, error) {
	if !tokenName.MatchString(name) {
		return Token{}, fmt.Errorf("the name %q must be 1 to 64 letters, digits and ._@:/+-", name)
	}
	r, err := ParseRole(role)
	return Token{Name: name, Role: r, Sum: sum, Expires: expires}, err
}

// parseToken reads the fields of a line.
func parseToken(fields []string) (Token, error) {
	if len(fields) != 3 && len(fields) != 4 {
		return Token{}, errors.New("must be a name, a role, the SHA-256 of the token and, if it expires, when")
	}
	sum, err := hex.DecodeString(strings.TrimPrefix(fields[2], sumPrefix))
	if err != nil || len(sum) != sha256.Size {
		return Token{}, errors.New("the third field must be sha256: and 64 hexadecimal digits, " +
			"never the token itself: weir token new prints the line")
	}
	var expires time.Time
	if len(fields) == 4 {
		expires, err = time.Parse(time.RFC3339, fields[3])
		if err != nil {
			return Token{}, errors.New("the fourth field must be a time like 2027-01-31T00:00:00Z")
		}
	}
	return NewToken(fields[0], fields[1], [sha256.Size]byte(sum), expires)
}
