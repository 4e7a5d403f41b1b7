package app_test

import (
	"log/slog"
	"net/http"
	"strings"
	"testing"

	"github.com/weir-proxy/weir/controlplane/internal/access/auth"
	"github.com/weir-proxy/weir/controlplane/internal/app/settings"
	"github.com/weir-proxy/weir/test/support/logtest"
	"github.com/weir-proxy/weir/test/support/redistest"
)

// A control plane that accepts no token of the other users of a Redis belongs to another
// deployment, and says so from its start. A control plane with a common token, or with its own
// prefix, does not.
func TestAnotherDeploymentIsNoticed(t *testing.T) {
	server := redistest.Start(t)
	for _, c := range []struct {
		name    string
		secrets []string
		prefix  string
		another bool
	}{
		{"the first", []string{secret}, "", false},
		{"its replica, while a token is replaced", []string{secret, "a new one, long enough"}, "", false},
		{"another deployment", []string{"another deployment's token"}, "", true},
		{"another with a prefix", []string{"another deployment's token"}, "?prefix=another", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			var tokens auth.Tokens
			for _, one := range c.secrets {
				tokens = append(tokens, auth.Token{Name: "all", Role: auth.Admin, Sum: auth.Sum(one)})
			}
			var log logtest.Buffer
			p := startWith(t, settings.Settings{
				Listen: "127.0.0.1:0", RedisURL: server.URL() + c.prefix, LostFill: 40, Tokens: tokens,
			}, slog.New(slog.NewTextHandler(&log, nil)))
			const words = "another deployment uses this Redis"
			body := string(p.until("/readyz/store", http.StatusOK).body)
			if strings.Contains(body, words) != c.another || strings.Contains(log.String(), words) != c.another {
				t.Errorf("another: %v, want %v: %s\n%s", !c.another, c.another, body, log.String())
			}
			want := map[bool]string{false: "weir_store_shared 0\n", true: "weir_store_shared 1\n"}[c.another]
			if got := string(p.do("GET", "/metrics", nil).body); !strings.Contains(got, want) {
				t.Errorf("the metrics lack %s", want)
			}
			p.stop()
		})
	}
}
