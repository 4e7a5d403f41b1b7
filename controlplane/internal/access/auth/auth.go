// Package auth decides about access: bearer tokens, kept as SHA-256 sums, each with a role.
package auth

import (
	"crypto/sha256"
	"crypto/subtle"
	"fmt"
	"time"
)

// Role is what a token may do.
type Role string

// Viewers read, editors also write, admins may do everything; nodes may use what the filter uses
// and nothing else.
const (
	Viewer Role = "viewer"
	Editor Role = "editor"
	Admin  Role = "admin"
	Node   Role = "node"
)

// ParseRole reads a role's name.
func ParseRole(text string) (Role, error) {
	switch r := Role(text); r {
	case Viewer, Editor, Admin, Node:
		return r, nil
	}
	return "", fmt.Errorf("%q is not a role: there are viewer, editor, admin, node", text)
}

// May reports whether a token of role r may do what requires the role needed.
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
	// Name stands for the token in logs, histories and metrics. While one token replaces another,
	// both have the same name.
	Name string
	Role Role
	Sum  [sha256.Size]byte
	// Expires is the time from which the token is refused; zero means never.
	Expires time.Time
}

// Expired reports whether the token has expired at now.
func (t Token) Expired(now time.Time) bool { return !t.Expires.IsZero() && !now.Before(t.Expires) }

// Sum is the stored form of a token's secret. A secret is random and too long to guess, so a slow
// hash would only give strangers a way to keep the server busy with wrong ones.
func Sum(secret string) [sha256.Size]byte { return sha256.Sum256([]byte(secret)) }

// Tokens are all accepted tokens.
type Tokens []Token

// Find returns the token with that secret, expired or not. Its time does not depend on whether and
// where it finds the token.
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
