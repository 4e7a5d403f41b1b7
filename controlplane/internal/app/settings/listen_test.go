package settings_test

import (
	"net/netip"
	"reflect"
	"strings"
	"testing"

	"github.com/weir-proxy/weir/controlplane/internal/access/auth"
	"github.com/weir-proxy/weir/controlplane/internal/app/settings"
	"github.com/weir-proxy/weir/test/support/certtest"
)

func TestListeners(t *testing.T) {
	authority := certtest.New(t, "authority")
	files := authority.Issue(t.TempDir(), "weir")
	whole := settings.ListenFlags{
		TLSCert: files.Cert, TLSKey: files.Key, NodeListen: "127.0.0.1:0", NodeClientCA: authority.Path,
		DebugListen: "[::1]:6060",
		RLSListen:   "127.0.0.1:0", RLSClientCA: authority.Path, RLSOpen: true,
	}
	f := valid(t)
	f.ListenFlags, f.LimitFlags = whole, settings.LimitFlags{APIRate: 1, NodeRate: 2, MaxConnections: 3,
		TrustedProxies: []string{"10.0.0.0/8", "2001:db8::1"}}
	proxies := []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("2001:db8::1/128")}
	s, err := f.Resolve()
	if err != nil || s.Listeners.TLS == nil || s.Listeners.NodeClients == nil || s.Listeners.Node != "127.0.0.1:0" ||
		s.Listeners.Debug != "[::1]:6060" ||
		!reflect.DeepEqual(s.Limits, settings.Limits{API: 1, Node: 2, Connections: 3, Proxies: proxies}) {
		t.Errorf("%+v, %v", s, err)
	}
	if l := s.Listeners; l.RLS != "127.0.0.1:0" || l.RLSClients == nil || !l.RLSOpen {
		t.Errorf("calls: %+v", l)
	}
	for name, c := range map[string]struct {
		change func(f *settings.Flags)
		want   string
	}{
		"a certificate without a key": {func(f *settings.Flags) { f.TLSKey = "" },
			"--tls-cert and --tls-key (WEIR_TLS_CERT, WEIR_TLS_KEY): give both or none"},
		"the key of another certificate": {func(f *settings.Flags) {
			f.TLSKey = authority.Issue(t.TempDir(), "other").Key
		}, "private key does not match public key"},
		"no certificate": {func(f *settings.Flags) { f.TLSCert = write(t, "x") }, "WEIR_TLS_KEY): "},
		"no authority": {func(f *settings.Flags) { f.NodeClientCA = write(t, "x") },
			"--node-client-ca (WEIR_NODE_CLIENT_CA): "},
		"an authority at the same door": {func(f *settings.Flags) { f.NodeListen = "" },
			"needs --node-listen, --tls-cert and --tls-key"},
		"an authority without TLS": {func(f *settings.Flags) { f.TLSCert, f.TLSKey = "", "" },
			"needs --node-listen, --tls-cert and --tls-key"},
		"an open RLS door without its listener": {func(f *settings.Flags) { f.RLSListen = "" },
			"--rls-client-ca and --rls-open (WEIR_RLS_CLIENT_CA, WEIR_RLS_OPEN): need --rls-listen"},
		"calls without a port": {func(f *settings.Flags) { f.RLSListen = "x" }, `--rls-listen (WEIR_RLS_LISTEN): "x" is not HOST:PORT`},
		"no authority of callers": {func(f *settings.Flags) { f.RLSClientCA = write(t, "x") },
			"--rls-client-ca (WEIR_RLS_CLIENT_CA): "},
		"callers' without TLS": {func(f *settings.Flags) { f.TLSCert, f.TLSKey = "", "" },
			"--rls-client-ca (WEIR_RLS_CLIENT_CA): needs --tls-cert"},
		"a door without a port":  {func(f *settings.Flags) { f.NodeListen = "x" }, `--node-listen (WEIR_NODE_LISTEN): "x" is not HOST:PORT`},
		"profiles for everybody": {func(f *settings.Flags) { f.DebugListen = ":6060" }, `":6060" is not an address that only this machine reaches`},
		"profiles for a network": {func(f *settings.Flags) { f.DebugListen = "192.0.2.1:6060" },
			"only this machine reaches"},
		"profiles by a name": {func(f *settings.Flags) { f.DebugListen = "localhost:6060" },
			"only this machine reaches"},
		"a negative rate": {func(f *settings.Flags) { f.APIRate = -1 },
			"--api-rate (WEIR_API_RATE): -1 is not from 0"},
		"a proxy that is no network": {func(f *settings.Flags) { f.TrustedProxies = []string{"ingress"} },
			`--trusted-proxies (WEIR_TRUSTED_PROXIES): "ingress" is no network like 10.0.0.0/8`},
		"too high a rate": {func(f *settings.Flags) { f.NodeRate = 1 << 40 },
			"--node-rate (WEIR_NODE_RATE)"},
		"fewer than no connections": {func(f *settings.Flags) { f.MaxConnections = -1 },
			"--max-connections (WEIR_MAX_CONNECTIONS)"},
		"no collector": {func(f *settings.Flags) { f.OTLPEndpoint = "collector:4318" },
			"--otlp-endpoint (WEIR_OTLP_ENDPOINT): must be like"},
		"a dashboard that is a script": {func(f *settings.Flags) { f.DashboardURL = "javascript:alert(1)//host" },
			"--dashboard-url (WEIR_DASHBOARD_URL): must be like"},
		"a dashboard with a password": {func(f *settings.Flags) { f.DashboardURL = "https://ops:pw@grafana/d/weir" },
			"--dashboard-url (WEIR_DASHBOARD_URL): must be like"},
		"a dashboard without a host": {func(f *settings.Flags) { f.DashboardURL = "/d/weir" },
			"--dashboard-url (WEIR_DASHBOARD_URL): must be like"},
	} {
		t.Run(name, func(t *testing.T) {
			f := valid(t)
			f.ListenFlags = whole
			c.change(&f)
			if _, err := f.Resolve(); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v, want %s", err, c.want)
			}
		})
	}
}

// A role that the tokens file has needs no token of its own, and no directory to keep one in.
func TestTheTokensFileIsEnough(t *testing.T) {
	t.Setenv("XDG_STATE_HOME", "")
	t.Setenv("HOME", "")
	line := func(role auth.Role) string {
		return auth.Token{Name: string(role) + "-1", Role: role, Sum: auth.Sum(auth.NewSecret())}.Line() + "\n"
	}
	f := settings.Flags{Listen: ":0", RedisURL: "redis://redis:6379",
		TokensFile: write(t, line(auth.Admin)+line(auth.Node))}
	if s, err := f.Resolve(); err != nil || len(s.Tokens) != 0 || s.DataDir != "" {
		t.Errorf("%+v, %v", s, err)
	}
	f.TokensFile = write(t, line(auth.Admin))
	if _, err := f.Resolve(); err == nil {
		t.Error("no token of nodes is set or kept, and it is accepted")
	}
}
