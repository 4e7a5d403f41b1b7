package mesh

import (
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"encoding/base64"
	"math/big"
	"net/http"
	"testing"
	"time"
)

// issuer signs tokens.
type issuer struct{ key *rsa.PrivateKey }

var encoding = base64.RawURLEncoding

// keys returns the issuer's public keys as RequestAuthentication takes them.
func (i issuer) keys(t *testing.T) string {
	return string(encode(t, map[string]any{"keys": []any{map[string]string{
		"kty": "RSA", "kid": "one", "alg": "RS256", "n": encoding.EncodeToString(i.key.N.Bytes()),
		"e": encoding.EncodeToString(big.NewInt(int64(i.key.E)).Bytes()),
	}}}))
}

// token returns a token for a subject.
func (i issuer) token(t *testing.T, subject string) string {
	t.Helper()
	header := encode(t, map[string]string{"alg": "RS256", "kid": "one", "typ": "JWT"})
	claims := encode(t, map[string]any{"iss": "shop", "sub": subject, "exp": time.Now().Add(time.Hour).Unix()})
	text := encoding.EncodeToString(header) + "." + encoding.EncodeToString(claims)
	sum := sha256.Sum256([]byte(text))
	signature, err := rsa.SignPKCS1v15(rand.Reader, i.key, crypto.SHA256, sum[:])
	if err != nil {
		t.Fatal(err)
	}
	return text + "." + encoding.EncodeToString(signature)
}

// One plugin before Envoy checks tokens and one after: the first also limits requests whose token
// is refused, the second counts by claims that were verified.
func pluginsBeforeAndAfterJWT(t *testing.T, m *mesh) {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	shop := issuer{key}
	g := aGround(t, m, "jwt")
	g.store(`
apiVersion: security.istio.io/v1
kind: RequestAuthentication
metadata: {name: shop, namespace: $NAMESPACE}
spec:
  selector: {matchLabels: {app: $NAMESPACE}}
  jwtRules: [{issuer: shop, jwks: '$KEYS'}]
`, "$KEYS", shop.keys(t))
	g.store(plugin{name: "before", pluginName: "before", config: inline("all-callers", 10)}.manifest(t))
	g.store(plugin{name: "after", pluginName: "after", phase: "AUTHZ", config: `{policyset: {version: weir/v1, policies: ` +
		`[{name: by-subject, partition: ["jwt:sub"], limit: {quota: 2, window: 1h}, mode: local}]}}`}.manifest(t))
	p := g.start(hasFilter("envoy.filters.http.jwt_authn"))
	for _, c := range []struct {
		authorization string
		want          int
		policy        string
	}{
		{"Bearer " + shop.token(t, "ann"), http.StatusOK, ""},
		{"Bearer " + shop.token(t, "ann"), http.StatusOK, ""},
		{"Bearer " + shop.token(t, "ann"), http.StatusTooManyRequests, "by-subject"},
		{"Bearer " + shop.token(t, "bob"), http.StatusOK, ""},
		{"Bearer made.up.token", http.StatusUnauthorized, ""},
		{"Bearer made.up.token", http.StatusUnauthorized, ""},
		{"Bearer made.up.token", http.StatusUnauthorized, ""},
		{"Bearer made.up.token", http.StatusUnauthorized, ""},
		{"Bearer made.up.token", http.StatusUnauthorized, ""},
		{"Bearer made.up.token", http.StatusUnauthorized, ""},
		{"Bearer made.up.token", http.StatusTooManyRequests, "all-callers"},
		{"Bearer " + shop.token(t, "bob"), http.StatusTooManyRequests, "all-callers"},
	} {
		a, err := ask(p.url("/"), "authorization", c.authorization)
		if err != nil {
			t.Fatal(err)
		}
		if a.status != c.want || c.policy != "" && a.policy() != c.policy {
			t.Errorf("%.20s…: %d by %q, want %d by %q", c.authorization, a.status, a.policy(), c.want, c.policy)
		}
	}
}
