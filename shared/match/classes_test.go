package match_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/weir-proxy/weir/shared/adaptive"
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/match"
	"github.com/weir-proxy/weir/shared/quota"
)

const inClasses = `{"version": "weir/v1", "tiers": ["free", "gold"],
	"identity": {"consumer": [{"header": "key"}], "tier": [{"header": "tier", "trusted": true}], "default_tier": "free"},
	"priorities": [
		{"name": "pay", "match": {"methods": ["POST"], "paths": ["/pay/**"]}},
		{"name": "gold", "match": {"tiers": ["gold"]}},
		{"name": "rest"},
		{"name": "bulk", "match": {"headers": [{"name": "batch", "present": true}]}}],
	"policies": [
		{"name": "fleet", "partition": [], "limit": {"quota": 100, "window": "1s"}, "reserve": {"pay": "20%", "rest": "10%"},
			"candidate": {"limit": {"quota": 50, "window": "1s"}}},
		{"name": "up", "partition": ["upstream"], "limit": {"quota": 9, "window": "1s"}}]}`

// A request meets the limits of its class: the first that matches, wherever the rest stands.
func TestLimitsByClass(t *testing.T) {
	ix := compile(t, inClasses)
	for _, c := range []struct {
		of            string
		request       *match.Attributes
		limits, draft int
	}{
		{"pay", request("POST", "", "/pay/1"), 1, 1},
		{"pay before bulk", request("POST", "", "/pay/1", "batch", "1"), 1, 1},
		{"gold", request("GET", "", "/pay/1", "tier", "gold", "batch", "1"), 2, 2},
		{"the rest", request("GET", "", "/pay/1"), 2, 2},
		{"bulk", request("GET", "", "/", "batch", "1"), 3, 3},
	} {
		limits, draft := 0, 0
		for _, h := range hold(ix, c.request).Hits {
			if h.Candidate {
				draft++
			} else {
				limits++
			}
		}
		if limits != c.limits || draft != c.draft {
			t.Errorf("%s: %d limits and %d drafts, want %d and %d", c.of, limits, draft, c.limits, c.draft)
		}
	}
}

// The rest for the lower classes has a bucket of its own, which Partition finds by its index.
func TestBucketsOfAReserve(t *testing.T) {
	set, ix := decode(t, inClasses), compile(t, inClasses)
	hits := hold(ix, request("GET", "", "/", "batch", "1")).Hits
	all := match.NewPartition(secret, set, &set.Policies[0], nil)
	for i, after := range []string{"", "pay", "rest"} {
		h, want := hits[i], all.Bucket("", set.Policies[0].Limits, i, false)
		if h.Key != want || string(ix.After(&h)) != after || int(h.Position) != i {
			t.Errorf("the limit at index %d is for those after %q: %+v", i, ix.After(&h), h)
		}
	}
}

// A part of a limit begins its windows with the whole, for each key and of every list: else the
// others would have two parts within one window of the whole.
func TestPartsBeginWithTheWhole(t *testing.T) {
	const doc = `{"version":"weir/v1","priorities":[{"name":"first","match":{"methods":["POST"]}},{"name":"next","match":{"methods":["PUT"]}},{"name":"rest"}],
		"policies":[{"name":"p","partition":["header:k"],"algorithm":"fixed_window","reserve":{"first":"20%","next":"30%"},
			"limit":[{"quota":20,"window":"5s"},{"quota":100,"window":"1m"}],
			"candidate":{"limit":[{"quota":10,"window":"5s"},{"quota":50,"window":"1m"}]}}]}`
	set, ix := decode(t, doc), compile(t, doc)
	offsets := map[quota.Span]bool{}
	for n := range 20 {
		key := fmt.Sprint("k", n)
		all := match.NewPartition(secret, set, &set.Policies[0], []match.Value{{Text: []byte(key)}})
		keys := map[keyhash.Key]bool{}
		for i, h := range hold(ix, request("GET", "", "/", "k", key)).Hits {
			offset := ix.Limit(h.Limit).WindowsOf(h.Key).Offset
			whole := hold(ix, request("POST", "", "/", "k", key)).Hits[i%2]
			if of := ix.Limit(whole.Limit).WindowsOf(whole.Key).Offset; offset != of {
				t.Errorf("%s, limit %d begins at %d, the whole at %d", key, i, offset, of)
			}
			if !h.Candidate && h.Key != all.Bucket("", set.Policies[0].Limits, int(h.Position), false) {
				t.Errorf("%s, limit %d: a Partition knows another bucket", key, i)
			}
			keys[h.Key], offsets[offset] = true, true
		}
		if len(keys) != 12 {
			t.Errorf("%s has %d buckets of 12", key, len(keys))
		}
	}
	if len(offsets) < 30 {
		t.Errorf("20 keys begin at %d moments", len(offsets))
	}
}

// A policy in shadow begins its windows when it will once it is enforced, for each key, tier and
// limit, in buckets of its own.
func TestShadowsBeginWithTheEnforced(t *testing.T) {
	doc := func(enforcement string) string {
		return `{"version":"weir/v1","tiers":["free","paid"],"identity":{"default_tier":"free","tier":[{"header":"tier","trusted":true}]},
			"policies":[{"name":"p","partition":["header:k"],"algorithm":"fixed_window","enforcement":"` + enforcement + `",
			"limits":{"free":[{"quota":20,"window":"5s"},{"quota":100,"window":"1m"}],"paid":{"quota":200,"window":"1m"}}}]}`
	}
	enforced, shadow := compile(t, doc("enforce")), compile(t, doc("shadow"))
	set := decode(t, doc("shadow"))
	limits := set.Policies[0].Limits
	for n := range 20 {
		key := fmt.Sprint("k", n)
		for _, tier := range []string{"free", "paid"} {
			r := request("GET", "", "/", "k", key, "tier", tier)
			for i, h := range hold(shadow, r).Hits {
				e := hold(enforced, r).Hits[i]
				if h.Key == e.Key {
					t.Errorf("%s %s, limit %d: shadow and enforced share a bucket", key, tier, i)
				}
				is := shadow.Limit(h.Limit).WindowsOf(h.Key).Offset
				if want := enforced.Limit(e.Limit).WindowsOf(e.Key).Offset; is != want {
					t.Errorf("%s %s, limit %d begins at %d, enforced at %d", key, tier, i, is, want)
				}
				p := match.NewPartition(secret, set, &set.Policies[0], []match.Value{{Text: []byte(key)}})
				if got := p.Bucket(tier, limits[:2], int(h.Position), true); tier == "free" && got != h.Key {
					t.Errorf("%s, limit %d: a Partition knows another bucket", key, i)
				}
			}
		}
	}
}

// Refusals of a class bring no penalty to a class from which less is kept.
func TestPenaltiesAreByClass(t *testing.T) {
	for _, scope := range []string{"policy", "all"} {
		ix := compile(t, `{"version":"weir/v1","identity":{"consumer":[{"header":"k"}]},
			"priorities":[{"name":"first","match":{"methods":["POST"]}},{"name":"next","match":{"methods":["PUT"]}},{"name":"rest"}],
			"policies":[{"name":"p","partition":["consumer"],"reserve":{"first":"20%","next":"30%"},"limit":{"quota":20,"window":"1m"},
				"penalty":{"after":{"refusals":5,"within":"1m"},"scope":"`+scope+`"}}]}`)
		seen := map[keyhash.Key]string{}
		for _, method := range []string{"POST", "PUT", "GET"} {
			s := hold(ix, request(method, "", "/", "k", "alice")).Subjects
			if len(s) != 1 || seen[s[0].Key] != "" {
				t.Fatalf("%s: %s is known as %s", scope, method, seen[s[0].Key])
			}
			seen[s[0].Key] = method
			first := hold(ix, request("POST", "", "/", "k", "alice")).Subjects[0].Key
			if keys := match.Keys(first, 2); !slices.Contains(keys, s[0].Key) || len(keys) != 6 {
				t.Errorf("%s: %s is not among the keys of the caller", scope, method)
			}
		}
	}
}

// property is one property of Envoy.
type property struct{ path, value string }

// Property implements match.Properties.
func (p property) Property(path []byte) []byte {
	if string(path) != p.path {
		return nil
	}
	return []byte(p.value)
}

// Requests to one cluster share a bucket. A request that goes to none, such as a redirect, has no
// such part.
func TestUpstream(t *testing.T) {
	ix := compile(t, inClasses)
	key := func(cluster string) (hits []match.Hit) {
		a := request("GET", "", "/")
		a.Properties = property{"xds\x00cluster_name", cluster}
		for _, h := range hold(ix, a).Hits {
			if h.Policy == 1 {
				hits = append(hits, h)
			}
		}
		return hits
	}
	one, again, other, none := key("one"), key("one"), key("other"), key("")
	if len(one) != 1 || one[0].Key != again[0].Key || one[0].Key == other[0].Key || len(none) != 0 {
		t.Errorf("one %+v, again %+v, other %+v, none %+v", one, again, other, none)
	}
}

// The rank of a request is its class and the cohort of its consumer or, without a consumer, of its
// address. It is computed only if an adaptive limit applies.
func TestRank(t *testing.T) {
	ix := compile(t, `{"version":"weir/v1","identity":{"consumer":[{"header":"x-key"}]},"priorities":[
		{"name":"first","match":{"paths":["/pay"]}},{"name":"rest"}],"policies":[
		{"name":"worker","match":{"methods":["GET"]},"partition":[],"adaptive":{"min":2,"max":9},"mode":"local"},
		{"name":"rate","partition":[],"limit":{"quota":9,"window":"1s"}}]}`)
	rank := func(path, key string, ip byte, method string) adaptive.Rank {
		a := request(method, "", path)
		a.ClientIP = []byte{10, 0, 0, ip}
		if key != "" {
			a.Headers = append(a.Headers, match.Header{Name: []byte("x-key"), Value: []byte(key)})
		}
		return hold(ix, a).Rank
	}
	cohorts, addresses := map[adaptive.Rank]bool{}, map[adaptive.Rank]bool{}
	for i := range byte(200) {
		one := rank("/", string([]byte{'k', i%26 + 'a', i/26 + 'a'}), i, "GET")
		cohorts[one], addresses[rank("/", "", i, "GET")] = true, true
		if one.Class != 1 || int(one.Cohort) >= adaptive.Cohorts ||
			one != rank("/", string([]byte{'k', i%26 + 'a', i/26 + 'a'}), 7, "GET") {
			t.Fatalf("rank %+v", one)
		}
	}
	if len(cohorts) < 64 || len(addresses) < 64 {
		t.Errorf("%d cohorts of consumers, %d of addresses", len(cohorts), len(addresses))
	}
	if first := rank("/pay", "a", 1, "GET"); first.Class != 0 || first.Cohort != rank("/", "a", 1, "GET").Cohort {
		t.Errorf("rank %+v", first)
	}
	if none := rank("/pay", "a", 1, "PUT"); none != (adaptive.Rank{}) {
		t.Errorf("rank %+v where no such limit applies", none)
	}
	if got := *ix.Adaptive(ix.Policy(0)); ix.Classes() != 2 || string(ix.Class(0)) != "first" || ix.Class(2) != nil ||
		got.Max != 9 {
		t.Errorf("%d classes, %+v", ix.Classes(), got)
	}
}
