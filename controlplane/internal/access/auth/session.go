package auth

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"time"
)

// ErrSession is the reason to refuse a session: this deployment did not seal it, or it has ended.
var ErrSession = errors.New("the session is not one of this deployment, or it has ended")

// maxSealed bounds the text of a session: each request with a cookie brings one.
const maxSealed = 1024

// NonceSize is how many random bytes Seal needs.
const NonceSize = 12

// Session is what the cookie of a browser stands for: the secret of a token, until a time. It holds
// the secret and not its sum, so that the key alone makes no session: that needs a valid token too.
type Session struct {
	Secret string
	Ends   time.Time
}

// SessionKey derives the key of sessions from the deployment's secret: every replica opens what
// another has sealed.
func SessionKey(deployment [16]byte) [sha256.Size]byte {
	mac := hmac.New(sha256.New, deployment[:])
	mac.Write([]byte("weir console session 1"))
	return [sha256.Size]byte(mac.Sum(nil))
}

// Seal encrypts the session. A nonce must be random and used once.
func (s Session) Seal(key [sha256.Size]byte, nonce [NonceSize]byte) string {
	plain := binary.BigEndian.AppendUint64(nil, uint64(s.Ends.Unix()))
	plain = append(plain, s.Secret...)
	sealed := sealer(key).Seal(nonce[:], nonce[:], plain, nil)
	return base64.RawURLEncoding.EncodeToString(sealed)
}

// OpenSession returns the session that a text was sealed from, or ErrSession.
func OpenSession(key [sha256.Size]byte, text string, now time.Time) (Session, error) {
	if len(text) > maxSealed {
		return Session{}, ErrSession
	}
	sealed, err := base64.RawURLEncoding.DecodeString(text)
	if err != nil || len(sealed) < NonceSize {
		return Session{}, ErrSession
	}
	plain, err := sealer(key).Open(nil, sealed[:NonceSize], sealed[NonceSize:], nil)
	if err != nil || len(plain) < 8 {
		return Session{}, ErrSession
	}
	s := Session{Secret: string(plain[8:]), Ends: time.Unix(int64(binary.BigEndian.Uint64(plain)), 0)}
	if !now.Before(s.Ends) {
		return Session{}, ErrSession
	}
	return s, nil
}

// sealer is AES-256-GCM; neither step fails with a key of this length.
func sealer(key [sha256.Size]byte) cipher.AEAD {
	block, err := aes.NewCipher(key[:])
	if err != nil {
		panic(err)
	}
	aead, err := cipher.NewGCM(block)
	if err != nil {
		panic(err)
	}
	return aead
}
