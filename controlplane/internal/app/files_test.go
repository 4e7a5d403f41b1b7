package app_test

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/weir-proxy/weir/controlplane/internal/auth"
	"github.com/weir-proxy/weir/controlplane/internal/settings"
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
