package match_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/match"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/wire"
)

// plainBucket is the bucket of a policy with one limit for the values of a key.
func plainBucket(p *policy.Policy, values ...match.Value) keyhash.Key {
	return match.NewPartition(secret, &policy.Set{}, p, values).Bucket("", p.Limits, 0, false)
}

// The bucket found without a request is the request's bucket: for every kind of part, tier and
// limit, and in shadow.
func TestPartitionsAreThoseOfRequests(t *testing.T) {
	doc := `{"version":"weir/v1","tiers":["free","gold"],
		"identity":{"consumer":[{"header":"x-api-key"},{"cookie":"who"}],"tier":[{"header":"x-tier","trusted":true}],"default_tier":"free"},
		"policies":[{"name":"p","match":{"paths":["/a/**"]},"if_absent":"shared","enforcement":{"enforce":ENFORCE},
			"partition":["client_ip","consumer","tier","method","host","path","policy_path","header:x-h","cookie:c","query:q"],
			"limits":{"free":[{"quota":1,"window":"1s"},{"quota":2,"window":"1m"},{"quota":3,"window":"1h"}],"gold":[{"quota":9,"window":"1s"},{"quota":99,"window":"1m"}]}}]}`
	for _, enforce := range []string{"100", "0", "40"} {
		enforcement := map[string]string{"100": `"enforce"`, "0": `"shadow"`, "40": `{"enforce":40}`}[enforce]
		set := decode(t, strings.Replace(doc, `{"enforce":ENFORCE}`, enforcement, 1))
		ix := load(t, set)
		for i := range 40 {
			tier := []string{"free", "gold"}[i%2]
			key := fmt.Sprint("k", i)
			a := request("GET", "h", "/a/b", "x-api-key", key, "x-tier", tier, "x-h", "v", "cookie", "c=crumb")
			a.ClientIP, a.Query = []byte{10, 0, 0, 1}, []byte("q=1")
			consumer := match.Value{Text: []byte(key),
				Source: policy.Source{Kind: policy.SourceHeader, Name: "x-api-key"}}
			if i%3 == 0 {
				a.Headers = a.Headers[1:]
				consumer = match.Value{Absent: true}
			}
			text := func(s string) match.Value { return match.Value{Text: []byte(s)} }
			p := match.NewPartition(secret, set, &set.Policies[0],
				[]match.Value{{Text: []byte{10, 0, 0, 1}}, consumer, text(tier), text("GET"), text("h"),
					text("/a/b"), text("/a/**"), text("v"), text("crumb"), text("1")})
			hits := hold(ix, a).Hits
			if want := map[string]int{"free": 3, "gold": 2}[tier]; len(hits) != want {
				t.Fatalf("%d hits", len(hits))
			}
			for n, hit := range hits {
				if got := p.Bucket(tier, set.Policies[0].LimitsOf(i%2), n, hit.Shadow); got != hit.Key {
					t.Errorf("enforce %s, request %d, limit %d, shadow %v: %v, want %v", enforce, i, n, hit.Shadow, got,
						hit.Key)
				}
			}
			if percent := map[string]int{"100": 100, "0": 0, "40": 40}[enforce]; hits[0].Shadow !=
				(p.Share() >= percent) {
				t.Errorf("share %d is in shadow: %v", p.Share(), hits[0].Shadow)
			}
			ix.Enforce(&wire.Enforcement{Bans: []wire.Ban{{Key: p.Key()}}}, 0)
			if hold(ix, a).Ban != match.KeyBan {
				t.Error("the key is not the key of bans")
			}
			ix.Enforce(&wire.Enforcement{}, 0)
		}
	}
}

// Places in flight have their own buckets, which stay when the list around them changes; the rest
// after a reserve has another bucket.
func TestPlacesInFlightAreThoseOfRequests(t *testing.T) {
	var first match.Hit
	for _, limits := range []string{
		`[{"quota":5,"window":"1s"},{"in_flight":10}]`, `[{"in_flight":10},{"quota":5,"window":"1s"},{"quota":9,"window":"1m"}]`,
	} {
		for _, state := range []string{"enforce", "shadow"} {
			doc := `{"version":"weir/v1","tiers":["free"],"identity":{"consumer":[{"header":"x-api-key"}],"default_tier":"free"},
				"priorities":[{"name":"vital","match":{"methods":["POST"]}},{"name":"rest"}],"policies":[{"name":"p","mode":"local",
				"partition":["client_ip"],"limits":{"free":` + limits + `},"reserve":{"vital":"20%"},"enforcement":"` + state + `"}]}`
			set := decode(t, doc)
			ix := load(t, set)
			a := request("GET", "h", "/a/b", "x-api-key", "k")
			a.ClientIP = []byte{10, 0, 0, 1}
			p := match.NewPartition(secret, set, &set.Policies[0], []match.Value{{Text: a.ClientIP}})
			of, hits := set.Policies[0].LimitsOf(0), hold(ix, a).Hits
			if len(hits) != len(of) {
				t.Fatalf("%d hits of %d limits", len(hits), len(of))
			}
			for n, hit := range hits {
				if want := p.Bucket("free", of, n, hit.Shadow); want != hit.Key {
					t.Errorf("%s, %s, limit %d: %v, want %v", limits, state, n, hit.Key, want)
				}
				if of[n].InFlight && n < len(of)/2 && state == "enforce" {
					if first.Key != hit.Key && first.Cost > 0 {
						t.Errorf("%s: the places are others because of the list", limits)
					}
					first = hit
				}
			}
		}
	}
}
