package match_test

import (
	"fmt"
	"testing"

	"github.com/weir-proxy/weir/shared/match"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/wire"
)

// One operation is one request matched against many policies, of which one applies: by its path,
// with a segment that matches anything.
func BenchmarkMatch(b *testing.B) {
	for _, n := range []int{1, 100, 10_000} {
		b.Run(fmt.Sprint(n, " policies"), func(b *testing.B) {
			ix := compile(b, thousands(n))
			a := request("GET", "api.example.com", fmt.Sprintf("/v1/tenant-%d/items/7", n/2))
			var m match.Matcher
			b.ReportAllocs()
			for b.Loop() {
				if hits := m.Match(ix, a).Hits; len(hits) != 1 || hits[0].Policy != uint32(n/2) {
					b.Fatalf("%+v", hits)
				}
			}
		})
	}
}

// One operation is one request matched against many policies with different values of a header, of
// which one applies; and against the same number of policies without a gate.
func BenchmarkMatchConditions(b *testing.B) {
	for _, c := range []struct{ name, condition string }{{"equals", "equals"}, {"prefix", "prefix"}} {
		for _, n := range []int{10, 5000} {
			b.Run(fmt.Sprint(c.name, ", ", n, " policies"), func(b *testing.B) {
				matches := make([]string, n)
				for i := range matches {
					matches[i] = fmt.Sprintf(`{"headers":[{"name":"x-tenant","%s":"tenant-%05d"}]}`, c.condition, i)
				}
				ix := compile(b, policies(matches...))
				a := request("GET", "api.example.com", "/v1/items/7", "user-agent", "bench",
					"x-tenant", fmt.Sprintf("tenant-%05d", n/2))
				var m match.Matcher
				b.ReportAllocs()
				for b.Loop() {
					if hits := m.Match(ix, a).Hits; len(hits) != 1 || hits[0].Policy != uint32(n/2) {
						b.Fatalf("%+v", hits)
					}
				}
			})
		}
	}
}

// One operation is one request and the hash of its bucket, with a partition key of no text, of one
// text and of several. The difference from the empty key is the cost of the texts.
func BenchmarkKey(b *testing.B) {
	const apiKey = "0123456789abcdef0123456789abcdef"
	text := func(s string) match.Value { return match.Value{Text: []byte(s)} }
	consumer, address := text(apiKey), text("\x0a\x00\x00\x01")
	consumer.Source = policy.Source{Kind: policy.SourceHeader, Name: "x-key"}
	for _, c := range []struct {
		name, partition string
		values          []match.Value
	}{
		{"nothing", `[]`, nil},
		{"header", `["header:x-key"]`, []match.Value{text(apiKey)}},
		{"consumer", `["consumer"]`, []match.Value{consumer}},
		{"client_ip", `["client_ip"]`, []match.Value{address}},
		{"three", `["consumer", "client_ip", "policy_path"]`, []match.Value{consumer, address, text("/v1/items/{id}")}},
	} {
		b.Run(c.name, func(b *testing.B) {
			set := decode(b, `{"version":"weir/v1","identity":{"consumer":[{"header":"x-key"}]},"policies":[{"name":"p","partition":`+c.partition+
				`,"match":{"paths":["/v1/items/{id}"]},"limit":{"quota":1,"window":"1s"}}]}`)
			ix := load(b, set)
			want := plainBucket(&set.Policies[0], c.values...)
			a := request("GET", "api.example.com", "/v1/items/7", "user-agent", "bench", "x-key", apiKey)
			var m match.Matcher
			b.ReportAllocs()
			for b.Loop() {
				if hits := m.Match(ix, a).Hits; len(hits) != 1 || hits[0].Verdict != match.Limited ||
					hits[0].Key != want {
					b.Fatalf("%+v, want the bucket %v", hits, want)
				}
			}
		})
	}
}

// One operation is a new version of ten thousand policies, compiled at once.
func BenchmarkLoad(b *testing.B) {
	snapshot := wire.AppendSnapshot(nil, wire.Snapshot{Version: 1, Set: decode(b, thousands(10_000))})
	var ix match.Index
	b.SetBytes(int64(len(snapshot)))
	b.ReportAllocs()
	for b.Loop() {
		if err := ix.Load(snapshot); err != nil || ix.Len() != 10_000 {
			b.Fatalf("%d policies: %v", ix.Len(), err)
		}
	}
}

// One operation is a part of the same, as a worker compiles one in each tick.
func BenchmarkLoadPart(b *testing.B) {
	snapshot := wire.AppendSnapshot(nil, wire.Snapshot{Version: 1, Set: decode(b, thousands(10_000))})
	var ix match.Index
	done := true
	b.ReportAllocs()
	for b.Loop() {
		var err error
		if done {
			b.StopTimer()
			err = ix.Begin(snapshot)
			b.StartTimer()
		}
		if err == nil {
			done, err = ix.Continue(4096)
		}
		if err != nil {
			b.Fatal(err)
		}
	}
}
