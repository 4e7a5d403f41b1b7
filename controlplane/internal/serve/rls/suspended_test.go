package rls_test

import (
	"strings"
	"testing"

	ratelimitpb "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	typepb "github.com/envoyproxy/go-control-plane/envoy/type/v3"
)

// override returns the limit that a descriptor has itself: n requests a minute.
func override(n uint32) *ratelimitpb.RateLimitDescriptor_RateLimitOverride {
	return &ratelimitpb.RateLimitDescriptor_RateLimitOverride{RequestsPerUnit: n, Unit: typepb.RateLimitUnit_MINUTE}
}

// A quota of 0 refuses each call, whatever the mode, also by the figure that a descriptor brings;
// the other limits of the call are charged nothing.
func TestAQuotaOfZero(t *testing.T) {
	const set = `
version: weir/v1
headers: {legacy: x-ratelimit}
identity: {consumer: [{header: x-api-key}]}
policies:
  - {name: none, match: {domain: d, descriptors: [{name: none, present: true}]}, partition: ["descriptor:none"], limit: {quota: 0, window: 1h}, mode: MODE}
  - {name: some, match: {domain: d, descriptors: [{name: some, present: true}]}, partition: ["descriptor:some"], limit: {quota: 2, window: 1h}, mode: strict}
  - {name: own, match: {domain: d, descriptors: [{name: own, present: true}]}, partition: ["descriptor:own"], limit: {quota: {header: descriptor-limit-minute, trusted: true, max: 9, default: 3}, window: 1m}, mode: MODE}
`
	for _, mode := range []string{"leased", "strict", "optimistic"} {
		w := begin(t, strings.ReplaceAll(set, "MODE", mode))
		for range 3 {
			out := w.ask(request("d", "some=a|none=b"))
			fields, said := out.DynamicMetadata.GetFields(), headersOf(out)
			if out.OverallCode.String() != "OVER_LIMIT" || fields["reason"].GetStringValue() != "suspended" {
				t.Fatalf("%s: %s", mode, out)
			}
			if !strings.Contains(string(out.RawBody), "Policy none is suspended for this caller") ||
				strings.Contains(said, "retry-after") || strings.Contains(said, "x-ratelimit-reset") ||
				!strings.Contains(said, `ratelimit-policy: "none";q=0;w=3600`) ||
				!strings.Contains(said, "ratelimit: \"none\";r=0\n") ||
				!strings.Contains(said, "x-ratelimit-limit: 0\nx-ratelimit-remaining: 0\n") {
				t.Errorf("%s: %s\n%s", mode, out.RawBody, said)
			}
		}
		if got := shown(w.ask(request("d", "some=a"))); !strings.Contains(got, "some 1/2") {
			t.Errorf("%s: refused requests were charged: %s", mode, got)
		}
		in := request("d", "own=a")
		in.Descriptors[0].Limit = override(0)
		if got := w.ask(in).DynamicMetadata.GetFields()["reason"].GetStringValue(); got != "suspended" {
			t.Errorf("%s: by a descriptor's own limit of 0: %q", mode, got)
		}
		in.Descriptors[0].Limit = override(5)
		if got := w.ask(in).OverallCode.String(); got != "OK" {
			t.Errorf("%s: by 5: %s", mode, got)
		}
	}
}
