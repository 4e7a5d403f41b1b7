package e2e

import (
	"context"
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"testing"

	"github.com/weir-proxy/weir/test/support/certtest"
	"github.com/weir-proxy/weir/tools/stack"
)

// withTLS makes the control plane's cluster speak TLS to a port, with a client certificate if any
// is given.
func withTLS(config, ca string, port int, client ...certtest.Files) string {
	var shown strings.Builder
	for _, files := range client {
		fmt.Fprintf(&shown, "\n            tls_certificates: [{certificate_chain: {filename: %s}, private_key: "+
			"{filename: %s}}]", files.Cert, files.Key)
	}
	socket := fmt.Sprintf(`      transport_socket:
        name: envoy.transport_sockets.tls
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext
          common_tls_context:%s
            validation_context:
              trusted_ca: {filename: %s}
              match_typed_subject_alt_names: [{san_type: IP_ADDRESS, matcher: {exact: 127.0.0.1}}]
`, shown.String(), ca)
	const before = "      load_assignment:\n        cluster_name: weir\n"
	others, own, _ := strings.Cut(config, before)
	first := true
	own = portValue.ReplaceAllStringFunc(own, func(old string) string {
		if !first {
			return old
		}
		first = false
		return fmt.Sprint("port_value: ", port)
	})
	return others + socket + before + own
}

var portValue = regexp.MustCompile(`port_value: [0-9]+`)

// With --node-client-ca an Envoy that shows a certificate gets policies and leases. An Envoy that
// has only the token gets neither.
func TestNodesShowACertificate(t *testing.T) {
	t.Parallel()
	authority := certtest.New(t, "authority")
	server, client := authority.Issue(t.TempDir(), "weir"), authority.Issue(t.TempDir(), "envoy")
	port, err := stack.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	shown := []certtest.Files{client}
	w := start(t, setup{alone: true,
		rewrite: func(config string) string { return withTLS(config, authority.Path, port, shown...) }})
	w.serve.TLS = authority.Client()
	w.serve.Env = []string{
		"WEIR_TLS_CERT=" + server.Cert, "WEIR_TLS_KEY=" + server.Key, "WEIR_NODE_CLIENT_CA=" + authority.Path,
		fmt.Sprintf("WEIR_NODE_LISTEN=127.0.0.1:%d", port),
	}
	w.startControlPlane()
	version := w.apply(`
version: weir/v1
policies:
  - {name: everyone, match: {paths: [/leased]}, partition: [], limit: {quota: 100, window: 24h}, mode: strict}
`)
	w.awaitApplied(version)
	got := load{url: w.envoys[0].URL() + "/leased", clients: 4, total: 120}.run(w.ctx)
	if got.statuses[200] != 100 || got.statuses[429] != 20 {
		t.Errorf("with a certificate: %s, want 100 × 200 and 20 × 429", got)
	}
	shown = nil
	w.startEnvoy("envoy-2")
	w.await("envoy-2 to be turned away", func(ctx context.Context) error {
		content, err := w.envoys[1].Admin(ctx, "/stats?filter=^wasmcustom\\.weir\\.polls\\.")
		if err == nil && !regexp.MustCompile(`polls\.unavailable: [1-9]`).Match(content) {
			err = fmt.Errorf("its polls are %s", content)
		}
		return err
	})
	if a := ask(t, http.MethodPost, w.envoys[1].URL()+"/leased"); a.Get("RateLimit-Policy") != "" {
		t.Errorf("without a certificate it knows the policy: %v", a)
	}
	nodes, err := w.controlPlane.Nodes(w.within(patience))
	if err != nil || len(nodes) != 1 || nodes[0].ID != "envoy-1" {
		t.Errorf("the nodes are %+v, %v", nodes, err)
	}
}
