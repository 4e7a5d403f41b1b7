package match_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/match"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/wire"
)

const ordered = `{"version":"weir/v1","tiers":["free","gold"],"banned":{"client_ips":["10.0.0.1"]},
	"identity":{"tier":[{"header":"x-tier","trusted":true}],"default_tier":"free"},
	"policies":[
		{"name":"plain","match":{"paths":["/plain"]},"partition":["header:x-key"],"limit":{"quota":1,"window":"1h"},"if_absent":"deny"},
		{"name":"tiered","match":{"paths":["/tiered"]},"partition":[],"limits":{"free":{"quota":1,"window":"1h"},"gold":"unlimited"}},
		{"name":"watched","match":{"paths":["/watched"]},"partition":[],"limit":{"quota":1,"window":"1h"},"enforcement":"shadow"},
		{"name":"asleep","match":{"paths":["/asleep"]},"partition":[],"limit":{"quota":1,"window":"1h"},"enforcement":"off"}]}`

func order(state policy.Enforced, policy, tier string) wire.Order {
	return wire.Order{State: state, Percent: 100, Policy: []byte(policy), Tier: []byte(tier)}
}

const (
	enforce, shadow, off = policy.EnforcedAll, policy.EnforcedShadow, policy.EnforcedOff
)

// standing returns the state of a request at each policy: enforced, watched, or nothing; x if the
// policy was switched off, and off if everything was.
func standing(ix *match.Index, tier string) string {
	var out []string
	for _, path := range []string{"/plain", "/tiered", "/watched", "/asleep"} {
		result := hold(ix, request("GET", "h", path, "x-key", "k", "x-tier", tier))
		hits := result.Hits
		switch {
		case result.Access == match.Off:
			out = append(out, "off")
		case result.Bypassed && len(hits) == 0:
			out = append(out, "x")
		case len(hits) == 0:
			out = append(out, "-")
		case hits[0].Shadow:
			out = append(out, "s")
		default:
			out = append(out, "e")
		}
	}
	return strings.Join(out, " ")
}

func TestTheMostSpecificOrderCounts(t *testing.T) {
	ix := compile(t, ordered)
	for _, c := range []struct {
		name   string
		orders []wire.Order
		free   string
		gold   string
	}{
		{"nothing", nil, "e e s -", "e - s -"},
		{"everything off", []wire.Order{order(off, "", "")}, "off off off off", "off off off off"},
		{"everything in shadow", []wire.Order{order(shadow, "", "")}, "s s s s", "s - s s"},
		{"everything on", []wire.Order{order(enforce, "", "")}, "e e e e", "e - e e"},
		{"one policy", []wire.Order{order(off, "plain", "")}, "x e s -", "x - s -"},
		{"one tier", []wire.Order{order(off, "", "gold")}, "e e s -", "x - x -"},
		{"a policy before everything", []wire.Order{order(off, "", ""), order(enforce, "plain", "")}, "e x x -",
			"e - x -"},
		{"a policy before a tier", []wire.Order{order(off, "", "free"), order(shadow, "plain", "")}, "s x x -",
			"s - s -"},
		{"both before either", []wire.Order{order(off, "", "free"), order(shadow, "plain", ""),
			order(enforce, "plain", "free")}, "e x x -", "s - s -"},
		{"unknown names", []wire.Order{order(off, "plan", ""), order(off, "", "silver")}, "e e s -",
			"e - s -"},
		{"what has ended", []wire.Order{{State: off, Percent: 100, Expires: 1000},
			{State: off, Percent: 100, Policy: []byte("plain"), Expires: 1001}},
			"x e s -", "x - s -"},
	} {
		t.Run(c.name, func(t *testing.T) {
			ix.Enforce(&wire.Enforcement{Orders: c.orders}, 1000)
			if got := standing(ix, "free"); got != c.free {
				t.Errorf("tier free: %s, want %s", got, c.free)
			}
			if got := standing(ix, "gold"); got != c.gold {
				t.Errorf("tier gold: %s, want %s", got, c.gold)
			}
		})
	}
}

// An order for a share of the keys affects the same keys at every larger share. They are the keys
// that the document enforces first.
func TestAnOrderForAShareOfTheKeys(t *testing.T) {
	ix := compile(t, `{"version":"weir/v1","policies":[{"name":"p","partition":["header:x-key"],"limit":{"quota":1,"window":"1h"},"enforcement":{"enforce":50},"if_absent":"deny"}]}`)
	const keys = 2000
	count := func() (enforced, watched, off int, set map[int]bool) {
		set = map[int]bool{}
		for i := range keys {
			switch hits := hold(ix, request("GET", "h", "/", "x-key", fmt.Sprint(i))).Hits; {
			case len(hits) == 0:
				off++
				set[i] = true
			case hits[0].Shadow:
				watched++
			default:
				enforced++
			}
		}
		return enforced, watched, off, set
	}
	near := func(got, percent int) bool { return got > keys*(percent-5)/100 && got < keys*(percent+5)/100 }
	before := map[int]bool{}
	for _, percent := range []int{20, 70} {
		ix.Enforce(&wire.Enforcement{Orders: []wire.Order{{State: off, Percent: uint8(percent)}}}, 0)
		e, s, o, set := count()
		if !near(o, percent) || !near(e, max(50-percent, 0)) && e > 0 || e+s+o != keys || e > 0 != (percent < 50) {
			t.Errorf("%d %% off: %d off, %d enforced, %d watched", percent, o, e, s)
		}
		for key := range before {
			if !set[key] {
				t.Errorf("key %d is off at a smaller share and not at %d %%", key, percent)
			}
		}
		before = set
		// A caller without a key is among the first.
		if hits := hold(ix, request("GET", "h", "/")).Hits; len(hits) != 0 {
			t.Errorf("%d %%: who has no key is not off: %+v", percent, hits)
		}
	}
}

// Only an order that switches everything off lifts bans, even if another order is more specific.
func TestWhatLiftsBans(t *testing.T) {
	ix := compile(t, ordered)
	a := request("GET", "h", "/plain", "x-key", "k")
	a.ClientIP, a.Address = []byte{10, 0, 0, 1}, [16]byte{10: 0xff, 11: 0xff, 12: 10, 15: 1}
	for name, c := range map[string]struct {
		orders []wire.Order
		want   match.Access
	}{
		"nothing":             {nil, match.Banned},
		"shadow":              {[]wire.Order{order(shadow, "", "")}, match.Banned},
		"a policy":            {[]wire.Order{order(off, "plain", "")}, match.Banned},
		"a tier":              {[]wire.Order{order(off, "", "free")}, match.Banned},
		"nearly everything":   {[]wire.Order{{State: off, Percent: 99}}, match.Banned},
		"everything":          {[]wire.Order{order(off, "", "")}, match.Off},
		"everything but some": {[]wire.Order{order(off, "", ""), order(enforce, "plain", "")}, match.Open},
	} {
		ix.Enforce(&wire.Enforcement{Orders: c.orders}, 0)
		if got := hold(ix, a).Access; got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

// A ban of a key holds for all tiers and limits of the policy, whether it is enforced or watched,
// and not if it is switched off.
func TestBannedKeys(t *testing.T) {
	ix := compile(t, ordered)
	key := hold(ix, request("GET", "h", "/plain", "x-key", "bad")).Hits[0].Key
	bans := []wire.Ban{{Key: key}, {Key: keyhash.Key{0xff, 0xff}}, {Key: keyhash.Key{}}}
	slices.SortFunc(bans, func(a, b wire.Ban) int { return slices.Compare(a.Key[:], b.Key[:]) })
	for name, c := range map[string]struct {
		e    wire.Enforcement
		unix int64
		want bool
	}{
		"banned":             {wire.Enforcement{Bans: bans}, 0, true},
		"banned and watched": {wire.Enforcement{Bans: bans, Orders: []wire.Order{order(shadow, "", "")}}, 0, true},
		"switched off":       {wire.Enforcement{Bans: bans, Orders: []wire.Order{order(off, "plain", "")}}, 0, false},
		"lifted": {wire.Enforcement{Bans: bans,
			Orders: []wire.Order{order(off, "", ""), order(enforce, "plain", "")}}, 0, false},
		"until then": {wire.Enforcement{Bans: []wire.Ban{{Key: key, Expires: 1000}}}, 999, true},
		"no longer":  {wire.Enforcement{Bans: []wire.Ban{{Key: key, Expires: 1000}}}, 1000, false},
		"nobody":     {wire.Enforcement{}, 0, false},
	} {
		ix.Enforce(&c.e, c.unix)
		for value, want := range map[string]bool{"bad": c.want, "good": false} {
			result := hold(ix, request("GET", "h", "/plain", "x-key", value))
			if got := result.Access == match.Banned && result.Ban == match.KeyBan; got != want {
				t.Errorf("%s: %s is banned: %v", name, value, got)
			}
			if (result.BannedKey == key) != want || (result.BannedKey == keyhash.Key{}) == want {
				t.Errorf("%s: %s is banned by %v, the ban is one of %v", name, value, result.BannedKey, key)
			}
		}
	}
	ix.Enforce(&wire.Enforcement{Bans: bans}, 0)
	if hold(ix, request("GET", "h", "/plain")).Access != match.Open {
		t.Error("a caller without a key is banned")
	}
}

// A caller whose tier is unlimited has a key all the same, and it can be banned.
func TestAnUnlimitedTierCanBeBanned(t *testing.T) {
	ix := compile(t, ordered)
	hit := hold(ix, request("GET", "h", "/watched")).Hits
	if len(hit) != 1 {
		t.Fatal(hit)
	}
	bare := compile(t, strings.Replace(ordered, `"limits":{"free":{"quota":1,"window":"1h"},"gold":"unlimited"}`, `"limit":{"quota":1,"window":"1h"}`, 1))
	key := hold(bare, request("GET", "h", "/tiered")).Hits[0].Key
	ix.Enforce(&wire.Enforcement{Bans: []wire.Ban{{Key: key}}}, 0)
	for _, tier := range []string{"free", "gold"} {
		if hold(ix, request("GET", "h", "/tiered", "x-tier", tier)).Ban != match.KeyBan {
			t.Errorf("tier %s is not banned", tier)
		}
	}
}
