package auth

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"time"
)

// These are the reasons to refuse a secret.
var (
	ErrUnknown = errors.New("no token has this secret")
	ErrExpired = errors.New("the token has expired")
)

// Ring holds the accepted tokens. Make a Ring with NewRing. It is safe for concurrent use.
type Ring struct {
	now    func() time.Time
	fixed  Tokens
	tokens atomic.Pointer[Tokens]
}

// NewRing makes a Ring that always accepts the fixed tokens. now is the clock by which tokens
// expire.
func NewRing(fixed Tokens, now func() time.Time) *Ring {
	r := &Ring{now: now, fixed: fixed}
	r.Set(nil)
	return r
}

// Set replaces the accepted tokens, except the fixed tokens.
func (r *Ring) Set(others Tokens) {
	all := slices.Concat(r.fixed, others)
	r.tokens.Store(&all)
}

// Find returns the token with that secret. It returns ErrUnknown, or ErrExpired together with the
// token.
func (r *Ring) Find(secret string) (Token, error) {
	t, ok := (*r.tokens.Load()).Find(secret)
	switch {
	case !ok:
		return Token{}, ErrUnknown
	case t.Expired(r.now()):
		return t, ErrExpired
	}
	return t, nil
}

// Names returns the names of the accepted tokens.
func (r *Ring) Names() (names []string) {
	for _, t := range *r.tokens.Load() {
		names = append(names, t.Name)
	}
	return names
}

// Marks returns a mark for each accepted token, by which the sets of two replicas can be compared.
// A mark reveals nothing about the secret.
func (r *Ring) Marks() (marks []string) {
	for _, t := range *r.tokens.Load() {
		sum := sha256.Sum256(append([]byte("deployment "), t.Sum[:]...))
		marks = append(marks, hex.EncodeToString(sum[:8]))
	}
	return marks
}

// Expiring describes a token that expires or has expired.
type Expiring struct {
	Name    string
	Expires time.Time
}

// Expiring returns the tokens that expire, by name. If several tokens have one name, it returns
// the last to expire. It leaves out names with a token that never expires.
func (r *Ring) Expiring() []Expiring {
	last := map[string]time.Time{}
	var lasting []string
	for _, t := range *r.tokens.Load() {
		if t.Expires.IsZero() {
			lasting = append(lasting, t.Name)
		} else if t.Expires.After(last[t.Name]) {
			last[t.Name] = t.Expires
		}
	}
	var out []Expiring
	for name, at := range last {
		if !slices.Contains(lasting, name) {
			out = append(out, Expiring{name, at})
		}
	}
	slices.SortFunc(out, func(a, b Expiring) int { return strings.Compare(a.Name, b.Name) })
	return out
}
