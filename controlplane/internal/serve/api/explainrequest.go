package api

import (
	"cmp"
	"net/netip"
	"net/url"
	"strings"

	"golang.org/x/net/http/httpguts"

	"github.com/weir-proxy/weir/controlplane/internal/serve/api/gen"
	"github.com/weir-proxy/weir/controlplane/internal/serve/explain"
	"github.com/weir-proxy/weir/shared/match"
)

// requestOf reads the request in question.
func requestOf(in *gen.ExplainInput) (r explain.Request, err error) {
	r.Method = cmp.Or(in.Method, "GET")
	if !httpguts.ValidHeaderFieldName(r.Method) { // Both are tokens.
		return r, badRequest("method must be one like GET or POST, not %q", r.Method)
	}
	// A path stays as it is written, like //login and /a\login: the matcher interprets it.
	r.Path, _, _ = strings.Cut(in.URL, "#")
	if !strings.HasPrefix(in.URL, "/") {
		target, err := url.Parse(in.URL)
		if err != nil || target.Host == "" {
			return r, badRequest("url must be like https://shop.example/api?x=1, or a path like /api?x=1")
		}
		r.Host, r.Path = target.Host, cmp.Or(target.EscapedPath(), "/")
		if target.RawQuery != "" {
			r.Path += "?" + target.RawQuery
		}
	}
	for _, h := range in.Headers {
		name := strings.ToLower(h.Name)
		if !httpguts.ValidHeaderFieldName(strings.TrimPrefix(name, ":")) {
			return r, badRequest("headers: %q is no name that a header can have", h.Name)
		}
		if name == "host" || name == ":authority" {
			r.Host = h.Value
			continue
		}
		r.Headers = append(r.Headers, match.Header{Name: []byte(name), Value: []byte(h.Value)})
	}
	if in.ClientIP != "" {
		if _, err := netip.ParseAddr(in.ClientIP); err != nil {
			return r, badRequest("client_ip must be an address like 192.0.2.1 or 2001:db8::1")
		}
	}
	r.ClientIP, r.Verified = in.ClientIP, in.Verified
	return r, nil
}
