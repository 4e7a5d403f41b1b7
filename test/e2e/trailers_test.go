package e2e

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
)

// rows answers as an upstream whose trailers have the cost of a request, by HTTP/2: the number of
// tokens in x-uses, and the status of gRPC in x-status. With x-only it answers by trailers alone,
// with x-held it never ends, and with x-huge it ends with a trailer of a megabyte.
func rows(w http.ResponseWriter, r *http.Request) {
	at := http.TrailerPrefix
	w.Header().Set("content-type", "application/grpc")
	if r.Header.Get("x-only") != "" {
		at = ""
	} else {
		fmt.Fprint(w, "some rows")
		w.(http.Flusher).Flush()
	}
	if r.Header.Get("x-held") != "" {
		<-r.Context().Done()
		return
	}
	if r.Header.Get("x-huge") != "" {
		w.Header().Set(at+"x-rows", strings.Repeat("1", 1<<20))
	}
	for trailer, from := range map[string]string{"x-rows": "x-uses", "grpc-status": "x-status"} {
		if value := r.Header.Get(from); value != "" {
			w.Header().Set(at+trailer, value)
		}
	}
}

// upstreamHTTP2 has Envoy speak HTTP/2 with the upstream.
func upstreamHTTP2(config string) string {
	return strings.Replace(logCosts(config), "    - name: upstream\n", `    - name: upstream
      typed_extension_protocol_options:
        envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
          "@type": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions
          explicit_http_config: {http2_protocol_options: {}}
`, 1)
}

// Trailers settle, also the trailers of a unary call by gRPC, and trailers in place of a head. The
// access log says so if they came behind a head. A client without HTTP/2 does not see them, but its
// request is settled.
func TestTrailersSettle(t *testing.T) {
	t.Parallel()
	w := start(t, setup{envoys: 2, handler: http.HandlerFunc(rows), rewrite: upstreamHTTP2, policies: `
version: weir/v1
policies:
  - {name: calls, match: {paths: [/call]}, partition: [client_ip], algorithm: sliding_window, limit: {quota: 100, window: 24h}, mode: strict, cost: {reserve: 10, commit: {grpc_status: {16: 7, 0: 2, rest: 3}}, missing: 5}}
  - {name: rows, match: {paths: [/rows]}, partition: [client_ip], algorithm: sliding_window, limit: {quota: 100, window: 24h}, mode: strict, cost: {reserve: 10, commit: {trailer: x-rows}, missing: 5}}
`})
	var h2 http.Protocols
	h2.SetUnencryptedHTTP2(true)
	newer := &http.Client{Transport: &http.Transport{Protocols: &h2}}
	left := map[string]int64{"calls": 100, "rows": 100}
	for i, c := range []struct {
		name, path string
		client     *http.Client
		header     []string
		cost       int64
		logged     bool
	}{
		{"calls", "/call", newer, []string{"x-status", "16"}, 7, true},
		{"calls", "/call", newer, []string{"x-status", "0"}, 2, true},
		{"calls", "/call", newer, []string{"x-status", "5"}, 3, true},
		{"calls", "/call", newer, []string{"x-status", "16", "x-only", "1"}, 7, false},
		{"calls", "/call", newer, nil, 5, false},
		{"rows", "/rows", newer, []string{"x-uses", "4"}, 4, true},
		{"rows", "/rows", newer, []string{"x-uses", "14", "x-status", "0"}, 14, true},
		{"rows", "/rows", http.DefaultClient, []string{"x-uses", "6"}, 6, true},
		{"rows", "/rows", newer, []string{"x-uses", "8", "x-status", "0", "x-only", "1"}, 8, false},
		{"rows", "/rows", newer, []string{"x-status", "0"}, 5, false},
	} {
		to := w.envoys[i%2]
		answer, err := c.client.Do(request(http.MethodPost, to.URL()+c.path, append(c.header, "te", "trailers")...))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.Copy(io.Discard, answer.Body); err != nil {
			t.Error(err)
		}
		answer.Body.Close()
		if c.logged {
			w.awaitOutput(to, fmt.Sprintf("cost=reserved=10 actual=%d", c.cost))
		}
		left[c.name] -= c.cost
		w.awaitLevel(c.name, left[c.name])
	}
	ctx, leave := context.WithCancel(w.ctx)
	r := request(http.MethodPost, w.envoys[0].URL()+"/rows", "x-held", "1", "x-uses", "1").WithContext(ctx)
	if _, err := newer.Do(r); err != nil {
		t.Fatal(err)
	}
	leave() // In mid-stream.
	w.awaitCounter(w.envoys[0], "weir.costs.unanswered", 1)
	w.awaitLevel("rows", left["rows"]-10)
	// Envoy refuses trailers that are too large, so they have no cost: the reserved tokens are
	// charged.
	if answer, err := newer.Do(request(http.MethodPost, w.envoys[0].URL()+"/rows", "x-huge", "1")); err == nil {
		if _, err := io.Copy(io.Discard, answer.Body); err == nil {
			t.Error("a trailer of a megabyte came whole")
		}
		answer.Body.Close()
	}
	w.awaitCounter(w.envoys[0], "weir.costs.unanswered", 2)
	w.awaitLevel("rows", left["rows"]-20)
}
