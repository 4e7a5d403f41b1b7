package match_test

import (
	"fmt"
	"testing"

	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/match"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/wire"
)

const consumers = `{"version":"weir/v1","tiers":["free","gold"],
	"identity":{"consumer":[{"header":"x-api-key"}],"tier":["assignment"],"default_tier":"free"},"exempt":{"paths":["/open"]},
	"policies":[
		{"name":"api","partition":["consumer"],"limit":{"quota":10,"window":"1m"},"candidate":{"limit":{"quota":5,"window":"1m"}}},
		{"name":"tiers","partition":["consumer"],"limits":{"free":[{"quota":1,"window":"1s"},{"quota":9,"window":"1m"}],"gold":"unlimited"}},
		{"name":"log","partition":["consumer"],"algorithm":"sliding_log","limit":{"quota":3,"window":"1m"}},
		{"name":"all","partition":[],"limit":{"quota":100,"window":"1m"}}]}`

var consumersSecret = [16]byte{1, 2, 3}

func keyOf(value string) keyhash.Key {
	return match.ConsumerKey(consumersSecret, policy.Source{Kind: policy.SourceHeader, Name: "x-api-key"}, value)
}

// shown are hits as policy, limit, position, who knows and, of the caller's own, figures.
func shown(ix *match.Index, result match.Result) (all []string) {
	for _, h := range result.Hits {
		text := fmt.Sprintf("%s %d/%d %d", ix.Text(ix.Policy(h.Policy).Name), h.Limit, h.Position, h.Certainty)
		if h.Candidate {
			text += " candidate"
		}
		if h.Own > 0 {
			l := result.Own[h.Own-1]
			text += fmt.Sprintf(" own %d/%s/%d", l.Quota, policy.FormatSpan(l.Window), l.Params.Burst)
		}
		all = append(all, text)
	}
	return all
}

func TestLimitsOfAConsumersOwn(t *testing.T) {
	ix := compile(t, consumers)
	limit := func(quotas ...int64) (limits []wire.Figures) {
		for i, q := range quotas {
			limits = append(limits, wire.Figures{Quota: q, Window: quota.Span(i+1) * quota.Minute})
		}
		return limits
	}
	override := func(name string, until int64, limits []wire.Figures) wire.Override {
		return wire.Override{Policy: name, Until: until, Limits: limits}
	}
	const now = 1000
	for _, c := range []struct {
		name   string
		has    []wire.Override
		tier   string
		unsure bool
		want   []string
	}{
		{"nothing", nil, "", false, []string{"api 0/0 0", "api 1/0 0 candidate", "tiers 2/0 0", "tiers 3/1 0",
			"log 4/0 0", "all 5/0 0"}},
		{"nothing that is certain", nil, "", true,
			[]string{"api 0/0 2", "api 1/0 0 candidate", "tiers 2/0 3", "tiers 3/1 3", "log 4/0 2", "all 5/0 0"}},
		{"one limit", []wire.Override{override("api", wire.ForGood, limit(50))}, "", false,
			[]string{"api 0/0 1 own 50/1m/50", "api 1/0 0 candidate", "tiers 2/0 0", "tiers 3/1 0", "log 4/0 0",
				"all 5/0 0"}},
		{"more limits than the policy, and fewer",
			[]wire.Override{override("api", now+1, limit(50, 60)), override("tiers", now+1, limit(7))}, "", false,
			[]string{"api 0/0 1 own 50/1m/50", "api 0/1 1 own 60/2m/60", "api 1/0 0 candidate",
				"tiers 3/0 1 own 7/1m/7", "log 4/0 0", "all 5/0 0"}},
		{"one where the tier has none", []wire.Override{override("tiers", now+1, limit(7))}, "gold", false,
			[]string{"api 0/0 0", "api 1/0 0 candidate", "tiers 2/0 1 own 7/1m/7", "log 4/0 0", "all 5/0 0"}},
		{"no limit", []wire.Override{override("api", now+1, nil)}, "", false,
			[]string{"tiers 2/0 0", "tiers 3/1 0", "log 4/0 0", "all 5/0 0"}},
		{"one that has ended", []wire.Override{override("api", now, limit(50))}, "", false,
			[]string{"api 0/0 1", "api 1/0 0 candidate", "tiers 2/0 0", "tiers 3/1 0", "log 4/0 0", "all 5/0 0"}},
		{"one that does not fit the algorithm sleeps", []wire.Override{override("log", now+1, limit(5000))}, "gold",
			false,
			[]string{"api 0/0 0", "api 1/0 0 candidate", "log 4/0 1", "all 5/0 0"}},
		{"limits of a policy that is gone, and of a policy that is not by consumer",
			[]wire.Override{override("old", now+1, limit(5)), override("all", now+1, limit(5))}, "gold", false,
			[]string{"api 0/0 0", "api 1/0 0 candidate", "log 4/0 0", "all 5/0 0"}},
	} {
		k := &known{now: now, exceptionsRevision: 7, unsure: c.unsure,
			tiers: map[keyhash.Key]string{keyOf("alice"): c.tier},
			special: map[keyhash.Key][]byte{keyOf("alice"): wire.AppendExceptions(nil,
				wire.Exceptions{Overrides: c.has})}}
		a := request("GET", "h", "/", "x-api-key", "alice")
		a.Consumers = k
		result := hold(ix, a)
		if result.Access != match.Open {
			t.Errorf("%s: access %d", c.name, result.Access)
		}
		if got := shown(ix, result); fmt.Sprint(got) != fmt.Sprint(c.want) {
			t.Errorf("%s:\n%q, want\n%q", c.name, got, c.want)
		}
		if key, exceptionsRevision := result.Consumer, result.ExceptionsRevision; k.asked != 1 ||
			exceptionsRevision != 7 || key != keyOf("alice") {
			t.Errorf("%s: %d questions, exceptionsRevision %d, consumer %v", c.name, k.asked, exceptionsRevision, key)
		}
		b := request("GET", "h", "/", "x-api-key", "alice")
		b.Consumers = &known{tiers: k.tiers}
		for _, h := range result.Hits {
			window := ix.Limit(h.Limit).Window
			if h.Own > 0 {
				window = result.Own[h.Own-1].Window
			}
			for _, p := range hold(ix, b).Hits {
				same := p.Policy == h.Policy && ix.Limit(p.Limit).Window == window && p.Candidate == h.Candidate
				if same && p.Key != h.Key {
					t.Errorf("%s: the limit changes the bucket of %s", c.name, ix.Text(ix.Policy(h.Policy).Name))
				}
			}
		}
	}
}

func TestABanComesBeforeABypass(t *testing.T) {
	ix := compile(t, consumers)
	const now = 1000
	special := func(banned, bypass int64) []byte {
		return wire.AppendExceptions(nil, wire.Exceptions{Banned: banned, Bypass: bypass})
	}
	k := &known{now: now, special: map[keyhash.Key][]byte{
		keyOf("banned"): special(now+1, 0), keyOf("was"): special(now, now),
		keyOf("both"): special(wire.ForGood, wire.ForGood),
		keyOf("free"): special(0, wire.ForGood),
	}}
	for _, c := range []struct {
		path string
		keys []string
		want match.Access
	}{
		{"/", []string{"banned"}, match.Banned}, {"/", []string{"both"}, match.Banned},
		{"/open", []string{"banned"}, match.Banned},
		{"/", []string{"free"}, match.Exempt}, {"/", []string{"was"}, match.Open},
		{"/", []string{"nobody"}, match.Open},
		{"/", []string{"banned", "banned"}, match.Banned}, {"/", []string{"nobody", "banned"}, match.Banned},
		{"/open", []string{"free", "banned"}, match.Banned}, {"/", []string{"free", "nobody"}, match.Open},
		{"/", []string{"free", "free"}, match.Exempt}, {"/open", nil, match.Exempt}, {"/", nil, match.Open},
	} {
		var headers []string
		for _, key := range c.keys {
			headers = append(headers, "x-api-key", key)
		}
		a := request("GET", "h", c.path, headers...)
		a.Consumers = k
		if got := hold(ix, a).Access; got != c.want {
			t.Errorf("%s %v: %d, want %d", c.path, c.keys, got, c.want)
		}
	}
	// A consumer is looked up for its exceptions only while there are any, and else for its tier.
	for path, want := range map[string]int{"/": 1, "/open": 0} {
		quiet := &known{}
		a := request("GET", "h", path, "x-api-key", "banned")
		a.Consumers = quiet
		if hold(ix, a); quiet.asked != want {
			t.Errorf("%s: %d questions, want %d", path, quiet.asked, want)
		}
	}
}
