package app_test

import (
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/weir-proxy/weir/controlplane/internal/access/auth"
	"github.com/weir-proxy/weir/controlplane/internal/access/certs"
	"github.com/weir-proxy/weir/controlplane/internal/app/settings"
	"github.com/weir-proxy/weir/test/support/certtest"
	"github.com/weir-proxy/weir/test/support/redistest"
)

func policyFile(quota string) []byte {
	return []byte("version: weir/v1\npolicies:\n" +
		"  - {name: api, partition: [client_ip], limit: {quota: " + quota + ", window: 1m}, mode: local}\n")
}

// servesQuota waits until the policy set has a quota.
func (p *plane) servesQuota(quota string) {
	p.t.Helper()
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		got := p.do("GET", "/v1/policyset", nil)
		if strings.Contains(string(got.body), "quota: "+quota+",") {
			return
		}
		if time.Now().After(end) {
			p.t.Fatalf("the policy set is %s", got.body)
		}
	}
}

func TestThePolicySetComesFromFiles(t *testing.T) {
	dir, folder := t.TempDir(), t.TempDir()
	file := filepath.Join(folder, "api.yaml")
	write := func(text []byte) {
		t.Helper()
		if err := os.WriteFile(file, text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(policyFile("10"))
	s := settings.Settings{
		Listen: "127.0.0.1:0", DataDir: dir, PolicySet: folder,
		Tokens: auth.Tokens{{Name: "all", Role: auth.Admin, Sum: auth.Sum(secret)}},
	}
	p := startWith(t, s, slog.New(slog.DiscardHandler))
	p.servesQuota("10")
	for name, request := range map[string][3]string{
		"the whole set": {"PUT", "/v1/policyset", string(policyFile("99"))},
		"one policy":    {"DELETE", "/v1/policies/api", ""},
		"a rollback":    {"POST", "/v1/versions/1/rollback", ""},
	} {
		got := p.do(request[0], request[1], []byte(request[2]), "If-Match", "*")
		if got.status != 409 || !strings.Contains(string(got.body), "kept-in-files") ||
			!strings.Contains(string(got.body), folder) {
			t.Errorf("%s: %d %s", name, got.status, got.body)
		}
	}
	if got := p.do("PUT", "/v1/policyset?dry_run=true", policyFile("99"), "If-Match", "*"); got.status != 200 {
		t.Errorf("a trial: %d %s", got.status, got.body)
	}
	write(policyFile("20"))
	p.servesQuota("20")
	write(policyFile("-1")) // Broken files and a restart: the last good set is there.
	p.stop()
	p = startWith(t, s, slog.New(slog.DiscardHandler))
	p.servesQuota("20")
	if got := p.do("GET", "/metrics", nil); !strings.Contains(string(got.body), "weir_policyset_files_in_force 0\n") {
		t.Error("the metric does not say that the files are refused")
	}
	write(policyFile("30"))
	p.servesQuota("30")
}

// file is a file that the control plane reads again. good is its text without a mistake.
type file struct {
	path, good string
	// wrong is its text with a mistake in a line, and said is the name of that line.
	wrong, said string
}

// A wrong file is in the answers of the probes, with the line and without its text, and in a
// metric, until it is mended. The table has all files that are read again, with all kinds of
// mistakes. Meanwhile the last good files serve.
func TestAWrongFileIsReported(t *testing.T) {
	t.Parallel()
	read := func(path string) string {
		t.Helper()
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	at := func(text string) string { return fmt.Sprint("wrong in line ", 1+strings.Count(text, "\n")) }
	folder := t.TempDir()
	in := func(name, text string) string {
		t.Helper()
		path := filepath.Join(folder, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	const damaged = "-----BEGIN CERTIFICATE-----\nwritten by a secretary\n"
	certificates := redistest.MakeCertificates(t)
	server, address := redistest.StartTLS(t, certificates, "--appendonly", "no")
	server.Do("ACL", "SETUSER", "weir", "on", ">opensesame", "~*", "&*", "+@all")
	own := certtest.New(t, "own")
	pair, clients := own.Issue(t.TempDir(), "weir"), read(certtest.New(t, "clients").Path)
	token := auth.Token{Name: "ci", Role: auth.Viewer, Sum: auth.Sum("ci")}.Line()
	policies := filepath.Join(t.TempDir(), "api.yaml")
	limited, wrongly := string(policyFile("10")), string(policyFile("-1"))+"# secret"
	const word = "opensesame\n"
	authority, client, clientKey := read(certificates.CA), read(certificates.ClientCert), read(certificates.ClientKey)
	files := map[string]file{
		"--tokens-file":             {in("tokens", token), token, token + "\nci viewer secret", "wrong in line 2"},
		"--policyset":               {policies, limited, wrongly, "api.yaml:3"},
		"--rls-client-ca":           {in("clients.pem", clients), clients, clients + damaged, at(clients)},
		"--tls-cert":                {pair.Cert, read(pair.Cert), damaged, "wrong in line 1"},
		"--tls-key":                 {pair.Key, read(pair.Key), "\n" + damaged, "wrong in line 2"},
		"--redis-url password_file": {in("password", word), word, word + "\nsecret", "wrong in line 3"},
		"--redis-url ca_file":       {certificates.CA, authority, authority + damaged, at(authority)},
		"--redis-url cert_file":     {certificates.ClientCert, client, "\n\n" + damaged, "wrong in line 3"},
		"--redis-url key_file":      {certificates.ClientKey, clientKey, damaged, "wrong in line 1"},
	}
	in("../"+filepath.Base(filepath.Dir(policies))+"/api.yaml", files["--policyset"].good)
	pool, err := certs.LoadPool(files["--rls-client-ca"].path)
	if err != nil {
		t.Fatal(err)
	}
	p := startWith(t, settings.Settings{
		Listen: "127.0.0.1:0", PolicySet: filepath.Dir(policies), TokensFile: files["--tokens-file"].path,
		RedisURL: "rediss://weir@" + address + "?" + url.Values{
			"password_file": {files["--redis-url password_file"].path}, "ca_file": {certificates.CA},
			"cert_file": {certificates.ClientCert}, "key_file": {certificates.ClientKey}}.Encode(),
		Tokens:    auth.Tokens{{Name: "all", Role: auth.Admin, Sum: auth.Sum(secret)}},
		Listeners: settings.Listeners{RLSClients: pool, TLS: load(t, pair)},
	}, slog.New(slog.DiscardHandler))
	p.speak(p.app.Addr(), own.Client())
	p.servesQuota("10")
	p.until("/metrics", 200, "weir_policyset_files_in_force 1")
	kinds := map[string]func(f file) (text string, gone bool){
		"a mistake in a line": func(f file) (string, bool) { return f.wrong, false },
		"gone":                func(file) (string, bool) { return "", true },
		"empty":               func(file) (string, bool) { return "", false },
		"something else":      func(file) (string, bool) { return "<html>\n<p>no secret\n", false },
	}
	for kind, damage := range kinds {
		said := map[string]string{}
		for setting, f := range files {
			text, gone := damage(f)
			if gone {
				if err := os.Remove(f.path); err != nil {
					t.Fatal(err)
				}
			} else if err := os.WriteFile(f.path, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			said[setting] = f.said
		}
		p.reports(kind, said)
		// A connection that is new reaches the store with the files that were there before.
		server.Do("CLIENT", "KILL", "USER", "weir")
		p.until("/v1/policyset", 200, "quota: 10,")
		for _, f := range files {
			if err := os.WriteFile(f.path, []byte(f.good), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		for end := time.Now().Add(20 * time.Second); ; time.Sleep(50 * time.Millisecond) {
			got := p.do("GET", "/readyz", nil)
			if !strings.Contains(string(got.body), "the file of") {
				break
			}
			if time.Now().After(end) {
				t.Fatalf("%s: all is mended, and still reported: %s", kind, got.body)
			}
		}
	}
}

// reports waits until probes and metrics report just these settings.
func (p *plane) reports(kind string, said map[string]string) {
	p.t.Helper()
	var texts, metrics []string
	for setting, place := range said {
		texts = append(texts, "the file of "+setting+" is ")
		if kind == "a mistake in a line" {
			texts = append(texts, place)
		}
		metrics = append(metrics, `weir_file_wrong{setting="`+setting+`"} 1`)
	}
	p.until("/metrics", 200, metrics...)
	for _, probe := range []string{"/readyz", "/readyz/store"} {
		got := p.until(probe, 200, texts...)
		if strings.Contains(string(got.body), "secret") {
			p.t.Errorf("%s: %s shows the file's text: %s", kind, probe, got.body)
		}
		if n := strings.Count(string(got.body), "the file of "); n != len(said) {
			p.t.Errorf("%s: %s names %d files, want %d: %s", kind, probe, n, len(said), got.body)
		}
	}
}
