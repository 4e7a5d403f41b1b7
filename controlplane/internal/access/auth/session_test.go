package auth_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/weir-proxy/weir/controlplane/internal/access/auth"
)

// A session is opened by every replica of its deployment until it ends, and by no one else.
func TestSessionsEndAndAreSealed(t *testing.T) {
	now := time.Unix(1_790_000_000, 0)
	key, other := auth.SessionKey([16]byte{1}), auth.SessionKey([16]byte{2})
	sealed := auth.Session{Secret: "weir_secret", Ends: now.Add(time.Hour)}.Seal(key, [auth.NonceSize]byte{7})
	if strings.Contains(sealed, "secret") {
		t.Errorf("%s holds the secret in the clear", sealed)
	}
	changed := []byte(sealed)
	changed[20] ^= 1
	for _, c := range []struct {
		what, text string
		key        [32]byte
		after      time.Duration
		ok         bool
	}{
		{"fresh", sealed, key, 0, true},
		{"a second before its end", sealed, key, time.Hour - time.Second, true},
		{"at its end", sealed, key, time.Hour, false},
		{"another deployment's", sealed, other, 0, false},
		{"changed", string(changed), key, 0, false},
		{"cut", sealed[:len(sealed)-4], key, 0, false},
		{"empty", "", key, 0, false},
		{"no base64", "!!", key, 0, false},
		{"huge", strings.Repeat("A", 1<<20), key, 0, false},
	} {
		got, err := auth.OpenSession(c.key, c.text, now.Add(c.after))
		if c.ok && (err != nil || got.Secret != "weir_secret" || !got.Ends.Equal(now.Add(time.Hour))) {
			t.Errorf("%s: %+v, %v", c.what, got, err)
		}
		if !c.ok && !errors.Is(err, auth.ErrSession) {
			t.Errorf("%s: %+v, %v, want %v", c.what, got, err, auth.ErrSession)
		}
	}
}

func FuzzOpenSession(f *testing.F) {
	key := auth.SessionKey([16]byte{1})
	f.Add(auth.Session{Secret: "s", Ends: time.Unix(1<<40, 0)}.Seal(key, [auth.NonceSize]byte{}))
	f.Add("AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA")
	f.Fuzz(func(t *testing.T, text string) {
		s, err := auth.OpenSession(auth.SessionKey([16]byte{2}), text, time.Unix(0, 0))
		if err == nil {
			t.Errorf("%q opens as %+v with a key that sealed nothing", text, s)
		}
	})
}
