package match_test

import (
	"encoding/binary"
	"math"
	"testing"

	"github.com/weir-proxy/weir/shared/keyhash"
)

// claimed is a policy set with one limit of the fields a minute.
func claimed(limit string) string {
	return `{"version":"weir/v1","policies":[{"name":"p","partition":["header:who"],"mode":"local","limit":{"window":"1m",` + limit + `}}]}`
}

// held are properties by path, with slashes for the NULs in it.
type held map[string]string

func (h held) Property(path []byte) []byte {
	if value, ok := h[slashed(path)]; ok {
		return []byte(value)
	}
	return nil
}

func slashed(path []byte) string {
	text := append([]byte(nil), path...)
	for i := range text {
		if text[i] == 0 {
			text[i] = '/'
		}
	}
	return string(text)
}

func bytesOf(number float64) string {
	return string(binary.LittleEndian.AppendUint64(nil, math.Float64bits(number)))
}

const (
	planPath  = "metadata/filter_metadata/envoy.filters.http.jwt_authn/payload/plan/rpm"
	quotaPath = "metadata/filter_metadata/envoy.filters.http.ext_authz/own/quota"
)

// The figures are the request's own, cut to the largest; an invalid figure counts as the default.
// The bucket is the same for all figures.
func TestARequestsOwnFigures(t *testing.T) {
	const (
		jwt      = `"quota":{"jwt":"plan.rpm","max":6000,"default":60}`
		metadata = `"quota":{"metadata":"envoy.filters.http.ext_authz/own/quota","max":6000,"default":60}`
		header   = `"quota":{"header":"X-Limit","trusted":true,"max":6000,"default":60}`
		burst    = `"quota":600,"burst":{"header":"x-burst","trusted":true,"max":100,"default":10}`
		both     = header + `,"burst":{"header":"x-burst","trusted":true,"max":100,"default":10}`
		fixed    = header + `,"burst":7`
	)
	var bucket keyhash.Key
	for _, c := range []struct {
		name, limit  string
		properties   held
		headers      []string
		quota, burst int64
	}{
		{"a claim in digits", jwt, held{planPath: "600"}, nil, 600, 600},
		{"a claim that is a number", jwt, held{planPath: bytesOf(600)}, nil, 600, 600},
		{"a claim above the most", jwt, held{planPath: bytesOf(1e9)}, nil, 6000, 6000},
		{"a claim that is a fraction", jwt, held{planPath: bytesOf(600.5)}, nil, 60, 60},
		{"a negative claim", jwt, held{planPath: bytesOf(-600)}, nil, 60, 60},
		{"a claim of 0", jwt, held{planPath: bytesOf(0)}, nil, 0, 0},
		{"a burst of 0", burst, nil, []string{"x-burst", "0"}, 0, 0},
		{"no claim", jwt, held{}, nil, 60, 60},
		{"nothing can be asked for", jwt, nil, nil, 60, 60},
		{"a claim beyond all numbers", jwt, held{planPath: "99999999999999999999"}, nil, 6000, 6000},
		{"a number beyond all that count", jwt, held{planPath: bytesOf(1e30)}, nil, 6000, 6000},
		{"a header beyond all numbers", header, nil, []string{"x-limit", "18446744073709551616"}, 6000, 6000},
		{"metadata", metadata, held{quotaPath: bytesOf(120)}, nil, 120, 120},
		{"a header", header, nil, []string{"x-limit", "120"}, 120, 120},
		{"a header twice", header, nil, []string{"x-limit", "120", "x-limit", "130"}, 60, 60},
		{"a header that is no number", header, nil, []string{"x-limit", "many"}, 60, 60},
		{"a burst", burst, nil, []string{"x-burst", "20"}, 600, 20},
		{"no burst", burst, nil, nil, 600, 10},
		{"both", both, nil, []string{"x-limit", "120", "x-burst", "1000"}, 120, 100},
		{"a burst for all", fixed, nil, []string{"x-limit", "3"}, 3, 7},
	} {
		ix := compile(t, claimed(c.limit))
		a := request("GET", "h", "/", append(c.headers, "who", "alice")...)
		if c.properties != nil {
			a.Properties = c.properties
		}
		result := hold(ix, a)
		hits := result.Hits
		if len(hits) != 1 || hits[0].Own == 0 {
			t.Errorf("%s: %+v", c.name, hits)
			continue
		}
		l := result.Own[hits[0].Own-1]
		if l.Quota != c.quota || l.Params.Burst != c.burst || l.Own == 0 {
			t.Errorf("%s: %d and a burst of %d, want %d and %d", c.name, l.Quota, l.Params.Burst, c.quota, c.burst)
		}
		if bucket != (keyhash.Key{}) && bucket != hits[0].Key {
			t.Errorf("%s: another bucket", c.name)
		}
		bucket = hits[0].Key
	}
}

// Each limit of a list, of a tier and of a candidate has figures of its own. A consumer's own limit
// comes first, and a limit without figures is the same for every caller.
func TestFiguresGoWithTheirLimits(t *testing.T) {
	figure := func(name string) string { return `{"header":"` + name + `","trusted":true,"max":100,"default":1}` }
	ix := compile(t, `{"version":"weir/v1","tiers":["a","b"],"identity":{"default_tier":"a","tier":[{"header":"tier","trusted":true}]},"policies":[
		{"name":"p","partition":[],"mode":"local","limit":[{"quota":50,"window":"1m"},{"quota":`+figure("x")+`,"window":"1h"}],
		 "candidate":{"limit":{"quota":`+figure("y")+`,"window":"1m"}}},
		{"name":"q","partition":[],"mode":"local","limits":{"a":{"quota":40,"window":"1m"},"b":{"quota":`+figure("z")+`,"window":"1m"}}}]}`)
	for _, c := range []struct {
		tier string
		want []int64
	}{{"a", []int64{50, 11, 12, 40}}, {"b", []int64{50, 11, 12, 13}}} {
		result := hold(ix, request("GET", "h", "/", "tier", c.tier, "x", "11", "y", "12", "z", "13"))
		var got []int64
		for _, h := range result.Hits {
			l := *ix.Limit(h.Limit)
			if h.Own > 0 {
				l = result.Own[h.Own-1]
			}
			got = append(got, l.Quota)
		}
		if len(got) != len(c.want) {
			t.Fatalf("tier %s: %v", c.tier, got)
		}
		for i := range got {
			if got[i] != c.want[i] {
				t.Errorf("tier %s: quotas %v, want %v", c.tier, got, c.want)
			}
		}
	}
}
