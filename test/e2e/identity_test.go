package e2e

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"math/big"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// insertFilter puts an HTTP filter before Weir's.
func insertFilter(filter string) func(string) string {
	return func(config string) string {
		return strings.Replace(config, "                  - name: weir\n",
			indent(filter, 18)+"                  - name: weir\n", 1)
	}
}

func indent(text string, by int) string {
	lines := strings.Split(strings.Trim(text, "\n"), "\n")
	return strings.Repeat(" ", by) + strings.Join(lines, "\n"+strings.Repeat(" ", by)) + "\n"
}

// issuer signs tokens that Envoy's jwt_authn filter believes.
type issuer struct{ key *rsa.PrivateKey }

func newIssuer(t *testing.T) issuer {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	return issuer{key}
}

// filter returns a jwt_authn filter that passes requests without a token and refuses requests with
// a bad token.
func (i issuer) filter() string {
	encode := base64.RawURLEncoding.EncodeToString
	jwks := fmt.Sprintf(`{"keys":[{"kty":"RSA","alg":"RS256","use":"sig","kid":"1","n":"%s","e":"%s"}]}`,
		encode(i.key.N.Bytes()), encode(big.NewInt(int64(i.key.E)).Bytes()))
	return `
- name: envoy.filters.http.jwt_authn
  typed_config:
    "@type": type.googleapis.com/envoy.extensions.filters.http.jwt_authn.v3.JwtAuthentication
    providers:
      issuer:
        issuer: https://issuer.example
        payload_in_metadata: payload
        local_jwks: {inline_string: '` + jwks + `'}
    rules:
      - match: {prefix: /}
        requires: {requires_any: {requirements: [{provider_name: issuer}, {allow_missing: {}}]}}
`
}

// token returns an Authorization header with claims.
func (i issuer) token(t *testing.T, claims map[string]any) string {
	t.Helper()
	all := map[string]any{"iss": "https://issuer.example", "exp": time.Now().Add(time.Hour).Unix()}
	for name, value := range claims {
		all[name] = value
	}
	payload, err := json.Marshal(all)
	if err != nil {
		t.Fatal(err)
	}
	encode := base64.RawURLEncoding.EncodeToString
	signed := encode([]byte(`{"alg":"RS256","kid":"1","typ":"JWT"}`)) + "." + encode(payload)
	digest := sha256.Sum256([]byte(signed))
	signature, err := rsa.SignPKCS1v15(rand.Reader, i.key, crypto.SHA256, digest[:])
	if err != nil {
		t.Fatal(err)
	}
	return "Bearer " + signed + "." + encode(signature)
}

// statuses asks n times and returns the answers' statuses.
func statuses(t *testing.T, n int, url string, header ...string) string {
	t.Helper()
	var all []string
	for range n {
		all = append(all, fmt.Sprint(ask(t, http.MethodGet, url, header...).status))
	}
	return strings.Join(all, " ")
}

// Claims come from tokens that Envoy's own filter has verified: strings, numbers, nested claims and
// lists. A token that it refuses never reaches the limiter, and a header alice is not the claim
// alice.
func TestClaimsOfVerifiedTokensIdentify(t *testing.T) {
	t.Parallel()
	tokens := newIssuer(t)
	w := start(t, setup{rewrite: insertFilter(tokens.filter()), policies: `
version: weir/v1
identity: {consumer: [{header: x-api-key}, {jwt: sub}]}
policies:
  - {name: consumers, match: {paths: [/consumer]}, partition: [consumer], limit: {quota: 2, window: 24h}, mode: local}
  - {name: tenants, match: {paths: [/tenant]}, partition: ["jwt:org.tenant"], limit: {quota: 1, window: 24h}, mode: local}
  - {name: groups, match: {paths: [/groups]}, partition: ["jwt:groups"], limit: {quota: 1, window: 24h}, mode: local}
`})
	with := func(claims map[string]any) []string { return []string{"Authorization", tokens.token(t, claims)} }
	for _, c := range []struct {
		name, path string
		header     []string
		want       string
	}{
		{"a claim", "/consumer", with(map[string]any{"sub": "alice"}), "200 200 429"},
		{"another value", "/consumer", with(map[string]any{"sub": "bob"}), "200 200 429"},
		{"the same text in a header", "/consumer", []string{"x-api-key", "alice"}, "200 200 429"},
		{"the claim again, in a new token", "/consumer", with(map[string]any{"sub": "alice", "jti": "2"}),
			"429 429 429"},
		{"neither: the policy does not apply", "/consumer", nil, "200 200 200"},
		{"a forged token", "/consumer", []string{"Authorization", tokens.token(t, map[string]any{"sub": "eve"}) + "x"},
			"401 401 401"},
		{"a nested claim", "/tenant", with(map[string]any{"org": map[string]any{"tenant": "a"}}), "200 429 429"},
		{"a number", "/tenant", with(map[string]any{"org": map[string]any{"tenant": 7}}), "200 429 429"},
		{"a list", "/groups", with(map[string]any{"groups": []string{"a", "b"}}), "200 429 429"},
		{"another list", "/groups", with(map[string]any{"groups": []string{"a", "c"}}), "200 429 429"},
	} {
		if got := statuses(t, 3, w.envoys[0].URL()+c.path, c.header...); got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
}

// Two trusted proxies stand before Envoy: the client is the second x-forwarded-for entry from the
// right, whatever it writes itself before that, over however many header lines.
func TestTheClientBehindTwoTrustedProxies(t *testing.T) {
	t.Parallel()
	w := start(t, setup{policies: `
version: weir/v1
identity: {client_ip: {trusted_hops: 2, ipv6_prefix: 56}}
policies:
  - {name: per-ip, partition: [client_ip], limit: {quota: 2, window: 24h}, mode: local}
`})
	url := w.envoys[0].URL() + "/"
	for _, c := range []struct {
		name   string
		header []string
		want   string
	}{
		{"a client", []string{"X-Forwarded-For", "198.51.100.1, 10.0.0.1"}, "200 200 429"},
		{"who puts another before", []string{"X-Forwarded-For", "192.0.2.9, 198.51.100.1, 10.0.0.1"}, "429 429 429"},
		{"in a line of its own", []string{"X-Forwarded-For", "192.0.2.9", "X-Forwarded-For", "198.51.100.1",
			"X-Forwarded-For", "10.0.0.1"}, "429 429 429"},
		{"with a port", []string{"X-Forwarded-For", "198.51.100.1:4711, 10.0.0.1"}, "429 429 429"},
		{"another client", []string{"X-Forwarded-For", "198.51.100.2, 10.0.0.1"}, "200 200 429"},
		{"IPv6", []string{"X-Forwarded-For", "2001:db8:0:1::1, 10.0.0.1"}, "200 200 429"},
		{"of the same /56", []string{"X-Forwarded-For", "[2001:db8:0:ff::2]:99, 10.0.0.1"}, "429 429 429"},
		{"of another", []string{"X-Forwarded-For", "2001:db8:0:100::1, 10.0.0.1"}, "200 200 429"},
	} {
		if got := statuses(t, 3, url, c.header...); got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
}

// A peer that speaks IPv6 is known by its prefix.
func TestAnIPv6Peer(t *testing.T) {
	t.Parallel()
	w := start(t, setup{host: "::1", policies: `
version: weir/v1
banned: {client_ips: ["2001:db8::/32"]}
policies:
  - {name: per-ip, partition: [client_ip], limit: {quota: 2, window: 24h}, mode: leased}
`})
	if got := statuses(t, 3, w.envoys[0].URL()+"/"); got != "200 200 429" {
		t.Errorf("a client of two requests: %s", got)
	}
}

// Bans win over everything; who is exempt is never charged; and a policy may answer in its own
// words.
func TestBansExemptionsAndResponses(t *testing.T) {
	t.Parallel()
	w := start(t, setup{policies: `
version: weir/v1
identity: {client_ip: {trusted_hops: 1}}
banned: {client_ips: [203.0.113.0/24]}
exempt: {client_ips: [198.51.100.0/24], paths: [/healthz], methods: [OPTIONS]}
policies:
  - name: teapot
    partition: []
    limit: {quota: 1, window: 24h}
    mode: local
    response: {status: 418, body: short and stout}
`})
	url := w.envoys[0].URL()
	for _, c := range []struct{ name, path, from, want string }{
		{"a ban", "/healthz", "203.0.113.9", "403 403 403"},
		{"an exempt network", "/", "198.51.100.9", "200 200 200"},
		{"an exempt path", "/healthz", "192.0.2.1", "200 200 200"},
		{"everybody else", "/", "192.0.2.1", "200 418 418"},
	} {
		if got := statuses(t, 3, url+c.path, "X-Forwarded-For", c.from); got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
	if a := ask(t, http.MethodGet, url+"/", "X-Forwarded-For", "192.0.2.1"); a.body != "short and stout" ||
		a.Get("Retry-After") == "" {
		t.Errorf("a refusal says %q with Retry-After %q", a.body, a.Get("Retry-After"))
	}
}

// A percentage is of partition keys, the same ones on every Envoy and at every larger percentage.
func TestAPercentageIsTheSameKeysEverywhere(t *testing.T) {
	t.Parallel()
	at := func(percent int) string {
		return fmt.Sprintf(`
version: weir/v1
policies:
  - {name: p, partition: ["header:x-who"], limit: {quota: 1, window: 24h}, mode: local, enforcement: {enforce: %d}}
`, percent)
	}
	w := start(t, setup{envoys: 2, policies: at(25)})
	// enforced are the keys whose second request is refused.
	enforced := func(envoy int) map[int]bool {
		keys := map[int]bool{}
		for i := range 200 {
			if strings.HasSuffix(statuses(t, 2, w.envoys[envoy].URL()+"/", "x-who", fmt.Sprint(i)), "429") {
				keys[i] = true
			}
		}
		return keys
	}
	first, second := enforced(0), enforced(1)
	if len(first) < 25 || len(first) > 80 || fmt.Sprint(first) != fmt.Sprint(second) {
		t.Errorf("25 %% of 200 keys: %d on one Envoy, %d on the other, the same: %v", len(first), len(second),
			fmt.Sprint(first) == fmt.Sprint(second))
	}
	w.awaitApplied(w.apply(at(60)))
	w.await("more keys to be enforced", func(context.Context) error {
		more := enforced(0)
		for key := range first {
			if !more[key] {
				return fmt.Errorf("key %d is not enforced any more", key)
			}
		}
		if len(more) < 90 || len(more) > 150 {
			return fmt.Errorf("60 %% of 200 keys: %d", len(more))
		}
		return nil
	})
}

// The SPIFFE id and the subject are the id and the subject of the certificate by which Envoy has
// verified the caller's connection.
func TestVerifiedCertificatesIdentify(t *testing.T) {
	t.Parallel()
	ca := newAuthority(t)
	dir := t.TempDir()
	ca.write(t, dir)
	w := start(t, setup{
		policies: `
version: weir/v1
policies:
  - {name: services, match: {paths: [/spiffe]}, partition: [spiffe], if_absent: deny, limit: {quota: 2, window: 24h}, mode: local}
  - {name: certificates, match: {paths: [/subject]}, partition: [cert_subject], if_absent: deny, limit: {quota: 2, window: 24h}, mode: local}
`,
		rewrite: func(config string) string {
			return strings.Replace(config, "      filter_chains:\n        - filters:\n", indent(`
      filter_chains:
        - transport_socket:
            name: envoy.transport_sockets.tls
            typed_config:
              "@type": type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext
              require_client_certificate: true
              common_tls_context:
                tls_certificates: [{certificate_chain: {filename: `+dir+`/server.pem}, private_key: {filename: `+dir+`/server.key}}]
                validation_context: {trusted_ca: {filename: `+dir+`/ca.pem}}
          filters:`, 0), 1)
		},
	})
	server := strings.Replace(w.envoys[0].URL(), "http://", "https://", 1)
	for _, c := range []struct{ path, id, name, want string }{
		{"/spiffe", "spiffe://cluster.local/ns/a/sa/one", "", "200 200 429"},
		{"/spiffe", "spiffe://cluster.local/ns/a/sa/two", "", "200 200 429"},
		{"/spiffe", "", "billing", "403 403 403"},
		{"/subject", "", "billing", "200 200 429"},
		{"/subject", "spiffe://cluster.local/ns/a/sa/one", "reports", "200 200 429"},
		{"/subject", "spiffe://cluster.local/ns/a/sa/two", "reports", "429 429 429"},
		{"/subject", "spiffe://cluster.local/ns/a/sa/one", "", "403 403 403"},
	} {
		client := ca.client(t, c.id, c.name)
		var got []string
		for range 3 {
			a, err := send(client, request(http.MethodGet, server+c.path))
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, fmt.Sprint(a.status))
		}
		if all := strings.Join(got, " "); all != c.want {
			t.Errorf("%+v: %s", c, all)
		}
	}
}

// authority issues certificates.
type authority struct {
	key  *ecdsa.PrivateKey
	cert *x509.Certificate
}

func newAuthority(t *testing.T) authority {
	t.Helper()
	a := authority{key: newKey(t)}
	a.cert = a.issue(t, &x509.Certificate{Subject: pkix.Name{CommonName: "authority"}, IsCA: true,
		BasicConstraintsValid: true,
		KeyUsage:              x509.KeyUsageCertSign}, &a.key.PublicKey)
	return a
}

func newKey(t *testing.T) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func (a authority) issue(t *testing.T, template *x509.Certificate, key *ecdsa.PublicKey) *x509.Certificate {
	t.Helper()
	template.SerialNumber = big.NewInt(time.Now().UnixNano())
	template.NotBefore, template.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	parent := a.cert
	if parent == nil {
		parent = template
	}
	raw, err := x509.CreateCertificate(rand.Reader, template, parent, key, a.key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(raw)
	if err != nil {
		t.Fatal(err)
	}
	return cert
}

// write leaves ca.pem, server.pem and server.key in a folder.
func (a authority) write(t *testing.T, dir string) {
	t.Helper()
	key := newKey(t)
	server := a.issue(t, &x509.Certificate{Subject: pkix.Name{CommonName: "server"}, DNSNames: []string{"server"}},
		&key.PublicKey)
	secret, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	for name, block := range map[string]*pem.Block{
		"ca.pem": {Type: "CERTIFICATE", Bytes: a.cert.Raw}, "server.pem": {Type: "CERTIFICATE", Bytes: server.Raw},
		"server.key": {Type: "EC PRIVATE KEY", Bytes: secret},
	} {
		if err := os.WriteFile(filepath.Join(dir, name), pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// client calls with a certificate for a SPIFFE id, or for a DNS name if that is empty, and with a
// common name in its subject if that is not empty.
func (a authority) client(t *testing.T, id, commonName string) *http.Client {
	t.Helper()
	template := &x509.Certificate{ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
		Subject: pkix.Name{CommonName: commonName}}
	if id == "" {
		template.DNSNames = []string{"nobody"}
	} else {
		uri, err := url.Parse(id)
		if err != nil {
			t.Fatal(err)
		}
		template.URIs = []*url.URL{uri}
	}
	key := newKey(t)
	cert := a.issue(t, template, &key.PublicKey)
	pool := x509.NewCertPool()
	pool.AddCert(a.cert)
	return &http.Client{Timeout: patience,
		Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{
			RootCAs: pool, ServerName: "server",
			Certificates: []tls.Certificate{{Certificate: [][]byte{cert.Raw}, PrivateKey: key}},
		}}}
}
