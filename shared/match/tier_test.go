package match_test

import (
	"encoding/binary"
	"slices"
	"testing"

	"github.com/dchest/siphash"
	"pgregory.net/rapid"

	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/match"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/wire"
)

// byTier is a policy set with one policy p that gives free two limits, premium one and gold none,
// and whose draft is one limit.
func byTier(fields string) string {
	return `{"version":"weir/v1","tiers":["premium","free","gold","other"],
		"identity":{"consumer":[{"header":"x-api-key"},{"query":"key"}],"default_tier":"free",
			"tier":[{"jwt":"plan"},{"header":"x-tier","trusted":true},"assignment"]},
		"policies":[{"name":"p","limits":{"free":[{"quota":1,"window":"1s"},{"quota":9,"window":"1m"}],
			"premium":{"quota":7,"window":"1s"},"gold":"unlimited"},"candidate":{"limit":{"quota":5,"window":"1s"}},` + fields + `}]}`
}

// known has a node's data about its consumers, and a JWT's claims.
type known struct {
	tiers  map[keyhash.Key]string
	claims map[string]string
	asked  int
	// special has the exceptions of consumers, at now; unsure means that changes may have been
	// missed.
	special            map[keyhash.Key][]byte
	now                int64
	exceptionsRevision uint64
	unsure             bool
}

func (k *known) Exceptions() (bool, uint64) { return k.special != nil, k.exceptionsRevision }

func (k *known) Find(p *match.Consumer) {
	k.asked++
	p.Tier, p.Now, p.Sure = []byte(k.tiers[p.Key]), k.now, !k.unsure
	p.Exceptions = k.special[p.Key]
	banned, bypass := wire.Ends(p.Exceptions)
	p.Banned, p.Bypass = banned > p.Now, bypass > p.Now
}

func (k *known) Property(path []byte) []byte {
	return []byte(k.claims[string(path)])
}

const planClaim = "metadata\x00filter_metadata\x00envoy.filters.http.jwt_authn\x00payload\x00plan"

func TestTheFirstSourceThatHoldsATierCounts(t *testing.T) {
	ix := compile(t, byTier(`"partition":[]`))
	secret := [16]byte{1, 2, 3}
	header := policy.Source{Kind: policy.SourceHeader, Name: "x-api-key"}
	query := policy.Source{Kind: policy.SourceQuery, Name: "key"}
	tiers := map[keyhash.Key]string{
		match.ConsumerKey(secret, header, "alice"): "premium", match.ConsumerKey(secret, query, "bo b"): "premium",
		match.ConsumerKey(secret, header, "carol"): "abolished",
	}
	for _, c := range []struct {
		name, claim, query, want string
		headers                  []string
		asked                    int
	}{
		{name: "nothing is known", want: "free"},
		{name: "the claim", claim: "premium", headers: []string{"x-tier", "other"}, want: "premium"},
		{name: "a claim that is no tier", claim: "platinum", headers: []string{"x-tier", "premium"}, want: "premium"},
		{name: "names have a case", claim: "Premium", want: "free"},
		{name: "a header twice", headers: []string{"x-tier", "premium", "x_tier", "premium"}, want: "premium"},
		{name: "two headers", headers: []string{"x-tier", "premium", "x-tier", "other"}, want: "free"},
		{name: "an assignment", headers: []string{"x-api-key", "alice"}, want: "premium", asked: 1},
		{name: "of a decoded value", query: "key=bo%20b", want: "premium", asked: 1},
		{name: "of the value in another place", query: "key=alice", want: "free", asked: 1},
		{name: "of the first consumer", headers: []string{"x-api-key", "nobody"}, query: "key=bo+b", want: "free",
			asked: 1},
		{name: "of two consumers at once", headers: []string{"x-api-key", "alice", "x-api-key", "bob"}, want: "free"},
		{name: "of a consumer that is named twice", headers: []string{"x-api-key", "alice", "x-api-key", " alice"},
			want: "premium", asked: 1},
		{name: "of a tier that is gone", headers: []string{"x-api-key", "carol"}, want: "free", asked: 1},
		{name: "the claim before the assignment", claim: "other", headers: []string{"x-api-key", "alice"},
			want: "other"},
	} {
		k := &known{tiers: tiers, claims: map[string]string{planClaim: c.claim}}
		a := request("GET", "h", "/", c.headers...)
		a.Query, a.Properties, a.Consumers = []byte(c.query), k, k
		hits := hold(ix, a).Hits
		if got := string(ix.Tier(hits[0].Tier)); got != c.want || k.asked != c.asked {
			t.Errorf("%s: tier %s after %d questions, want %s after %d", c.name, got, k.asked, c.want, c.asked)
		}
	}
}

// A caller without a key is a consumer by its address, with a tier and buckets as any other.
func TestAConsumerByItsAddress(t *testing.T) {
	ix := compile(t, `{"version":"weir/v1","tiers":["anonymous","free","gold"],
		"identity":{"consumer":[{"header":"x-api-key"},"client_ip"],"default_tier":"gold",
			"tier":["assignment",{"consumer_source":{"client_ip":"anonymous","header:X-API-Key":"free"}}]},
		"policies":[{"name":"p","partition":["consumer"],"limits":{"gold":{"quota":9,"window":"1s"},"free":{"quota":5,"window":"1s"},"anonymous":{"quota":1,"window":"1s"}}},
			{"name":"q","match":{"tiers":["gold","free"]},"partition":[],"limit":{"quota":1,"window":"1s"}}]}`)
	if !ix.NeedsClientIP() {
		t.Error("the address is not asked for")
	}
	secret := [16]byte{1, 2, 3}
	k := &known{tiers: map[keyhash.Key]string{
		match.ConsumerKey(secret, policy.Source{Kind: policy.SourceClientIP}, "\x0a\x00\x00\x02"):         "gold",
		match.ConsumerKey(secret, policy.Source{Kind: policy.SourceHeader, Name: "x-api-key"}, "premium"): "gold",
	}}
	keys := map[keyhash.Key]string{}
	for _, c := range []struct {
		name, address string
		headers       []string
		tier          string
		policies      string
	}{
		{"a key", "\x0a\x00\x00\x01", []string{"x-api-key", "a"}, "free", "p q"},
		{"an address", "\x0a\x00\x00\x01", nil, "anonymous", "p"},
		{"a key that spells the address", "", []string{"x-api-key", "\x0a\x00\x00\x01"}, "free", "p q"},
		{"an address with a tier of its own", "\x0a\x00\x00\x02", nil, "gold", "p q"},
		{"a key with a tier of its own", "\x0a\x00\x00\x02", []string{"x-api-key", "premium"}, "gold", "p q"},
		{"neither", "", nil, "gold", "q"},
	} {
		a := request("GET", "h", "/", c.headers...)
		a.ClientIP, a.Consumers = []byte(c.address), k
		hits := hold(ix, a).Hits
		if got := string(ix.Tier(hits[0].Tier)); got != c.tier || names(ix, hits) != c.policies {
			t.Errorf("%s: tier %s, policies %s; want %s, %s", c.name, got, names(ix, hits), c.tier, c.policies)
		}
		if other, same := keys[hits[0].Key]; same {
			t.Errorf("%s has the bucket of %s", c.name, other)
		}
		keys[hits[0].Key] = c.name
	}
}

func TestLimitsByTierAndDrafts(t *testing.T) {
	ix := compile(t, byTier(`"partition":[]`))
	quotas := func(tier string) (out []int64) {
		for _, h := range hold(ix, request("GET", "h", "/", "x-tier", tier)).Hits {
			q := ix.Limit(h.Limit).Quota
			if h.Candidate != h.Shadow {
				t.Errorf("%s: %+v", tier, h)
			}
			if h.Candidate {
				q = -q
			}
			out = append(out, q)
		}
		return out
	}
	for tier, want := range map[string][]int64{"free": {1, 9, -5}, "premium": {7, -5}, "gold": nil,
		"other": {1, 9, -5}} {
		got := quotas(tier)
		if len(got) != len(want) {
			t.Errorf("%s: quotas %v, want %v", tier, got, want)
			continue
		}
		for i := range want {
			if got[i] != want[i] {
				t.Errorf("%s: quotas %v, want %v", tier, got, want)
			}
		}
	}
	if !ix.Several(0) {
		t.Error("free has several limits")
	}
}

// The encoding of keys identifies used tokens: another encoding would refill every bucket.
func TestKeyEncoding(t *testing.T) {
	sum := func(text string) (k keyhash.Key) {
		lo, hi := siphash.Hash128(0x030201, 0, []byte(text))
		binary.LittleEndian.PutUint64(k[:8], lo)
		binary.LittleEndian.PutUint64(k[8:], hi)
		return k
	}
	const set = `{"version":"weir/v1","policies":[{"name":"p","partition":["method"],"limit":[{"quota":1,"window":"1s"},{"quota":9,"window":"1m"}],
		"candidate":{"limit":{"quota":1,"window":"1s"}}`
	const second = "\xfe\x00\xc0\x84\x3d" // step 0, 1 000 000 microseconds
	for doc, want := range map[string][]string{
		set + `}]}`:                        {"\x01\x01p\x03\x01\x03GET", second, "", "\xfc"},
		set + `,"enforcement":"shadow"}]}`: {"\x01\x01p\x03\x01\x03GET", "\xff" + second, "\xff", "\xfc"},
		byTier(`"partition":[]`):           {"\x01\x01p", second, "", "\xfc"},
		byTier(`"partition":["tier"]`):     {"\x01\x01p\x0c\x01\x04free", second, "", "\xfc"},
	} {
		hits := hold(compile(t, doc), request("GET", "h", "/")).Hits
		if len(hits) != len(want)-1 {
			t.Errorf("%s: %d hits", doc, len(hits))
			continue
		}
		first := sum(want[0])
		for i, marks := range want[1:] {
			key := sum(want[0] + marks)
			copy(key[8:], first[8:]) // All windows of a key begin together, in shadow too.
			if hits[i].Key != key {
				t.Errorf("%s: the key of hit %d is not the key of %q and %q", doc, i, want[0], marks)
			}
		}
	}
	premium := hold(compile(t, byTier(`"partition":[]`)), request("GET", "h", "/", "x-tier", "premium")).Hits
	if premium[0].Key != sum("\x01\x01p\xfd\x07premium") {
		t.Error("the key of a tier that is not the default differs from the key of its name")
	}
}

// Enforcement by percentage depends on the partition key alone: a change of tier does not change
// it.
func TestShareDoesNotGoByTier(t *testing.T) {
	ix := compile(t, byTier(`"partition":["consumer"],"enforcement":{"enforce":50}`))
	shadows := 0
	for i := range 200 {
		consumer := string(rune('a'+i%26)) + string(rune('a'+i/26))
		free := hold(ix, request("GET", "h", "/", "x-api-key", consumer)).Hits[0]
		premium := hold(ix, request("GET", "h", "/", "x-api-key", consumer, "x-tier", "premium")).Hits[0]
		if free.Shadow != premium.Shadow || ix.Limit(free.Limit) == ix.Limit(premium.Limit) {
			t.Fatalf("%s: %+v, %+v", consumer, free, premium)
		}
		if free.Shadow {
			shadows++
		}
	}
	if shadows < 60 || shadows > 140 {
		t.Errorf("%d of 200 in shadow", shadows)
	}
}

// No two of all buckets of a policy are one: whatever the key, the tier and the limit, drafts
// included. Where the key is not a consumer, its callers have buckets by their tier.
func TestBucketsByTierAreDistinct(t *testing.T) {
	ix := compile(t, byTier(`"partition":["header:x-api-key"]`))
	rapid.Check(t, func(t *rapid.T) {
		type identity struct {
			key, tier string
			limit     int
		}
		seen := map[keyhash.Key]identity{}
		for range 20 {
			key := rapid.StringOfN(rapid.SampledFrom([]rune("afre\xfc\xfd\xfe\xff\x04\x01")), 1, 6, -1).Draw(t, "key")
			tier := rapid.SampledFrom([]string{"free", "premium", "other"}).Draw(t, "tier")
			for i, h := range hold(ix, request("GET", "h", "/", "x-api-key", key, "x-tier", tier)).Hits {
				is := identity{key, tier, i}
				if was, taken := seen[h.Key]; taken && was != is {
					t.Fatalf("%+v and %+v share a bucket", was, is)
				}
				seen[h.Key] = is
			}
		}
	})
}

// A consumer that changes its tier keeps its own used tokens, and gets no tokens of other
// consumers.
func TestAConsumerTakesItsUseToAnotherTier(t *testing.T) {
	ix := compile(t, byTier(`"partition":["consumer"]`))
	keys := func(consumer, tier string) (all []keyhash.Key) {
		for _, h := range hold(ix, request("GET", "h", "/", "x-api-key", consumer, "x-tier", tier)).Hits {
			all = append(all, h.Key)
		}
		return all
	}
	free, premium, other := keys("alice", "free"), keys("alice", "premium"), keys("alice", "other")
	if len(free) != 3 || len(premium) != 2 || free[1] != premium[0] || free[2] != premium[1] {
		t.Errorf("free %v, premium %v", free, premium)
	}
	if !slices.Equal(free, other) {
		t.Errorf("free %v, another tier with the same limits %v", free, other)
	}
	for _, k := range keys("bob", "free") {
		if slices.Contains(free, k) {
			t.Errorf("bob has a bucket of alice: %v", k)
		}
	}
}

// An unknown consumer may have a tier other than the default tier: the control plane decides if all
// its tiers share the bucket. A claim leaves no doubt.
func TestATierIsGuessed(t *testing.T) {
	ix := compile(t, byTier(`"partition":["consumer"]`))
	for _, c := range []struct {
		unsure bool
		tier   string
		claim  string
		want   match.Certainty
	}{
		{false, "", "", match.Certain}, {true, "", "", match.GuessedTier}, {true, "premium", "", match.Certain},
		{true, "", "premium", match.Certain},
	} {
		k := &known{unsure: c.unsure, claims: map[string]string{planClaim: c.claim},
			tiers: map[keyhash.Key]string{keyOf("alice"): c.tier}}
		a := request("GET", "h", "/", "x-api-key", "alice")
		a.Properties, a.Consumers = k, k
		result := hold(ix, a)
		if got := result.Hits[0].Certainty; got != c.want || got != match.Certain && result.Consumer != keyOf("alice") {
			t.Errorf("%+v: %d, consumer %v", c, got, result.Consumer)
		}
	}
	everyone := hold(compile(t, byTier(`"partition":[]`)), request("GET", "h", "/", "x-api-key", "alice")).Hits
	if everyone[0].Certainty != match.Certain {
		t.Error("a bucket of all callers of a tier is asked by consumer")
	}
}

// The buckets of a list of limits do not depend on its order, nor on limits that are added or
// removed, unless they have the longest window.
func TestBucketsOfAListKeepTheirOrder(t *testing.T) {
	keys := func(limits string) map[quota.Span]keyhash.Key {
		ix := compile(t, `{"version":"weir/v1","policies":[{"name":"p","partition":[],"limit":`+limits+`}]}`)
		all := map[quota.Span]keyhash.Key{}
		for _, h := range hold(ix, request("GET", "h", "/")).Hits {
			all[ix.Limit(h.Limit).Window] = h.Key
		}
		return all
	}
	const day, second, minute = `{"quota":10,"window":"1d"}`, `{"quota":5,"window":"1s"}`, `{"quota":7,"window":"1m"}`
	known := map[quota.Span]keyhash.Key{}
	for _, list := range []string{
		day, second + "," + day, day + "," + second, second + "," + minute + "," + day, day + "," + minute,
		minute + "," + day + "," + second,
	} {
		for window, key := range keys("[" + list + "]") {
			if was, seen := known[window]; seen && was != key {
				t.Errorf("%s: the limit over %d has another bucket", list, window)
			}
			known[window] = key
		}
	}
	if len(known) != 3 || known[quota.Second] == known[quota.Day] {
		t.Errorf("%v", known)
	}
}

func TestTiersDoNotAllocate(t *testing.T) {
	ix := compile(t, byTier(`"partition":["consumer","tier"]`))
	a := request("GET", "h", "/", "x-api-key", "alice", "x-tier", "premium")
	var m match.Matcher
	hits := m.Match(ix, a).Hits
	if allocs := testing.AllocsPerRun(100, func() { hits = m.Match(ix, a).Hits }); allocs > 0 || len(hits) != 2 {
		t.Errorf("%v allocations for %d hits", allocs, len(hits))
	}
}
