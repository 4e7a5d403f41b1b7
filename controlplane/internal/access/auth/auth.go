// Package auth decides about access with bearer tokens. It stores their SHA-256 sums, each with a
// role.
package auth

import (
	"crypto/sha256"
	"crypto/subtle"
	"fmt"
	"time"
)

// Role is the set of rights of a token.
type Role string

// Viewers read, editors also write, and admins may do everything. Nodes may only use the calls of
// the filter.
const (
	Viewer Role = "viewer"
	Editor Role = "editor"
	Admin  Role = "admin"
	Node   Role = "node"
)

// ParseRole reads the name of a role.
func ParseRole(text string) (Role, error) {
	switch r := Role(text); r {
	case Viewer, Editor, Admin, Node:
		return r, nil
	}
	return "", fmt.Errorf("%q is not a role: there are viewer, editor, admin, node", text)
}

// May reports whether a token with role r may make a request that needs the role needed.
func (r Role) May(needed Role) bool {
	switch needed {
	case Viewer:
		return r == Viewer || r == Editor || r == Admin
	case Editor:
		return r == Editor || r == Admin
	}
	return r == needed || r == Admin
}

// Token is one bearer token.
type Token struct {
	// Name identifies the token in logs, histories and metrics. While a new token replaces an old
	// token, both have the same name.
	Name string
	Role Role
	Sum  [sha256.Size]byte
	// Expires is the time from which the token is refused; zero means never.
	Expires time.Time
}

// Expired reports whether the token has expired at now.
func (t Token) Expired(now time.Time) bool { return !t.Expires.IsZero() && !now.Before(t.Expires) }

// Sum returns the stored form of a token's secret. A secret is random and too long to guess, so it
// needs no slow hash, which strangers could use to keep the server busy with wrong tokens.
func Sum(secret string) [sha256.Size]byte { return sha256.Sum256([]byte(secret)) }

// Tokens are all accepted tokens.
type Tokens []Token

// Find returns the token with that secret, even if it has expired. Its running time does not depend
// on the secret.
func (ts Tokens) Find(secret string) (Token, bool) {
	sum := Sum(secret)
	found := -1
	for i := range ts {
		found = subtle.ConstantTimeSelect(subtle.ConstantTimeCompare(sum[:], ts[i].Sum[:]), i, found)
	}
	if found < 0 || secret == "" {
		return Token{}, false
	}
	return ts[found], true
}
