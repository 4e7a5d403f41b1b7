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

// ErrSession is returned for a session that this deployment did not seal or that has ended.
var ErrSession = errors.New("the session is not one of this deployment, or it has ended")

// maxSealed is the maximum length of a session's text in bytes: each request with a cookie brings
// such a text.
const maxSealed = 1024

// NonceSize is the number of random bytes that Seal needs.
const NonceSize = 12

// Session is the content of a browser's cookie: the secret of a token, and the time at which the
// session ends. It contains the secret and not its sum, so that the key alone is not enough to
// forge a session; that needs a valid token too.
type Session struct {
	Secret string
	Ends   time.Time
}

// SessionKey derives the key of sessions from the deployment's secret, so that every replica can
// open the sessions of all other replicas.
func SessionKey(deployment [16]byte) [sha256.Size]byte {
	mac := hmac.New(sha256.New, deployment[:])
	mac.Write([]byte("weir console session 1"))
	return [sha256.Size]byte(mac.Sum(nil))
}

// Seal encrypts the session. nonce must be random and must be used only once.
func (s Session) Seal(key [sha256.Size]byte, nonce [NonceSize]byte) string {
	plain := binary.BigEndian.AppendUint64(nil, uint64(s.Ends.Unix()))
	plain = append(plain, s.Secret...)
	sealed := newSealer(key).Seal(nonce[:], nonce[:], plain, nil)
	return base64.RawURLEncoding.EncodeToString(sealed)
}

// OpenSession returns the session that was sealed into a text, or ErrSession.
func OpenSession(key [sha256.Size]byte, text string, now time.Time) (Session, error) {
	if len(text) > maxSealed {
		return Session{}, ErrSession
	}
	sealed, err := base64.RawURLEncoding.DecodeString(text)
	if err != nil || len(sealed) < NonceSize {
		return Session{}, ErrSession
	}
	plain, err := newSealer(key).Open(nil, sealed[:NonceSize], sealed[NonceSize:], nil)
	if err != nil || len(plain) < 8 {
		return Session{}, ErrSession
	}
	s := Session{Secret: string(plain[8:]), Ends: time.Unix(int64(binary.BigEndian.Uint64(plain)), 0)}
	if !now.Before(s.Ends) {
		return Session{}, ErrSession
	}
	return s, nil
}

// newSealer returns AES-256-GCM. It cannot fail with a key of this length.
func newSealer(key [sha256.Size]byte) cipher.AEAD {
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
