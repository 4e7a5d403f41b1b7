package wasm

import (
	"fmt"
	"testing"

	"github.com/weir-proxy/weir/envoytest"
)

// byHeader returns a set of n policies that the value of a header tells apart.
func byHeader(n int, more ...string) string {
	all := make([]string, n)
	for i := range all {
		all[i] = limits(fmt.Sprint("policy-", i), "local", "1000000000/1s",
			append(more, fmt.Sprintf(`"match": {"headers": [{"name": "x-tenant", "equals": "t%d"}]}`, i))...)
	}
	return setWith(dialectsOff+`, "identity": {"consumer": [{"jwt": "sub"}]}`, all...)
}

// One operation is one request in the built filter. One of the policies applies to it, by the value
// of a header, with a bucket for all, for each value of another header, or for each consumer by a
// claim.
func BenchmarkConditions(b *testing.B) {
	for _, c := range []struct{ name, partition string }{
		{"for all", forAll}, {"for each key", `"partition": ["header:x-key"]`}, {"for each claim", `"partition": ["consumer"]`},
	} {
		for _, n := range []int{10, 5000} {
			b.Run(fmt.Sprintf("%s, %d policies", c.name, n), func(b *testing.B) {
				h := start(b, envoytest.Options{PluginConfig: alone(byHeader(n, c.partition)), Workers: 1})
				request := get("x-key", "a", "x-tenant", fmt.Sprint("t", n/2), "user-agent", "bench", "accept", "*/*")
				claim := envoytest.Path("metadata", "filter_metadata", "envoy.filters.http.jwt_authn", "payload", "sub")
				request.Properties = map[string][]byte{claim: []byte("alice")}
				for b.Loop() {
					if allowed, _ := passes(b, h, 0, request); !allowed {
						b.Fatal("refused")
					}
				}
			})
		}
	}
}
