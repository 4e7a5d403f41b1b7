package app_test

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/weir-proxy/weir/controlplane/internal/auth"
	"github.com/weir-proxy/weir/controlplane/internal/certs"
	"github.com/weir-proxy/weir/controlplane/internal/settings"
	"github.com/weir-proxy/weir/test/certtest"
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

// A file that is wrong is in the answers of the probes, without what stands in it, and in a metric,
// until it is mended.
func TestAWrongFileIsReported(t *testing.T) {
	file, folder := filepath.Join(t.TempDir(), "tokens"), t.TempDir()
	write := func(path, text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	good := auth.Token{Name: "ci", Role: auth.Viewer, Sum: auth.Sum("ci")}.Line()
	write(file, good)
	write(filepath.Join(folder, "api.yaml"), string(policyFile("10")))
	authority, err := os.ReadFile(certtest.New(t, "clients").Path)
	if err != nil {
		t.Fatal(err)
	}
	clients := filepath.Join(t.TempDir(), "clients.pem")
	write(clients, string(authority))
	pool, err := certs.LoadPool(clients)
	if err != nil {
		t.Fatal(err)
	}
	p := startWith(t, settings.Settings{
		Listen: "127.0.0.1:0", DataDir: t.TempDir(), PolicySet: folder, TokensFile: file,
		Tokens:    auth.Tokens{{Name: "all", Role: auth.Admin, Sum: auth.Sum(secret)}},
		Listeners: settings.Listeners{RLSClients: pool},
	}, slog.New(slog.DiscardHandler))
	p.servesQuota("10")
	p.until("/metrics", 200, "weir_policyset_files_in_force 1")
	for _, c := range []struct{ setting, path, mended, wrong, said string }{
		{"--tokens-file", file, good, good + "\nci viewer the-secret-itself", "wrong in line 2"},
		{"--policyset", filepath.Join(folder, "api.yaml"), string(policyFile("10")), string(policyFile("-1")),
			"api.yaml:"},
		{"--rls-client-ca", clients, string(authority), string(authority) + "-----BEGIN CERTIFICATE-----\nsecret\n",
			fmt.Sprint("wrong in line ", 1+strings.Count(string(authority), "\n"))},
	} {
		path, setting, mended := c.path, c.setting, c.mended
		write(path, c.wrong)
		for _, probe := range []string{"/readyz", "/readyz/store"} {
			got := p.until(probe, 200, c.said)
			if !strings.Contains(string(got.body), "the file of "+setting+" is") {
				t.Errorf("%s: %s names no %s", probe, got.body, setting)
			}
			if strings.Contains(string(got.body), "secret") {
				t.Errorf("%s shows what stands in the file: %s", probe, got.body)
			}
		}
		p.until("/metrics", 200, `weir_file_wrong{setting="`+setting+`"} 1`)
		write(path, mended)
		for end := time.Now().Add(20 * time.Second); ; time.Sleep(50 * time.Millisecond) {
			if got := p.do("GET", "/readyz", nil); !strings.Contains(string(got.body), "warning") {
				break
			}
			if time.Now().After(end) {
				t.Fatalf("%s is mended, and still reported", setting)
			}
		}
	}
}
