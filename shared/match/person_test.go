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

const people = `{"version":"weir/v1","tiers":["free","gold"],
	"identity":{"consumer":[{"header":"x-api-key"}],"tier":["assignment"],"default_tier":"free"},"exempt":{"paths":["/open"]},
	"policies":[
		{"name":"api","partition":["consumer"],"limit":{"quota":10,"window":"1m"},"candidate":{"limit":{"quota":5,"window":"1m"}}},
		{"name":"tiers","partition":["consumer"],"limits":{"free":[{"quota":1,"window":"1s"},{"quota":9,"window":"1m"}],"gold":"unlimited"}},
		{"name":"log","partition":["consumer"],"algorithm":"sliding_log","limit":{"quota":3,"window":"1m"}},
		{"name":"all","partition":[],"limit":{"quota":100,"window":"1m"}}]}`

var peopleSecret = [16]byte{1, 2, 3}

func personKey(value string) keyhash.Key {
	return match.ConsumerKey(peopleSecret, policy.Source{Kind: policy.SourceHeader, Name: "x-api-key"}, value)
}

// shown are hits as policy, limit, place, who knows and, of the caller's own, figures.
func shown(ix *match.Index, hits []match.Hit) (all []string) {
	for _, h := range hits {
		text := fmt.Sprintf("%s %d/%d %d", ix.Text(ix.Policy(h.Policy).Name), h.Limit, h.Place, h.Knows)
		if h.Candidate {
			text += " candidate"
		}
		if h.Own > 0 {
			l := ix.Own()[h.Own-1]
			text += fmt.Sprintf(" own %d/%s/%d", l.Quota, policy.FormatSpan(l.Window), l.Params.Burst)
		}
		all = append(all, text)
	}
	return all
}

func TestLimitsOfAConsumersOwn(t *testing.T) {
	ix := compile(t, people)
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
		{"nothing", nil, "", false, []string{"api 0/0 0", "api 1/0 0 candidate", "tiers 2/0 0", "tiers 3/1 0", "log 4/0 0", "all 5/0 0"}},
		{"nothing that is certain", nil, "", true, []string{"api 0/0 2", "api 1/0 0 candidate", "tiers 2/0 2", "tiers 3/1 2", "log 4/0 2", "all 5/0 0"}},
		{"one limit", []wire.Override{override("api", wire.ForGood, limit(50))}, "", false,
			[]string{"api 0/0 1 own 50/1m/50", "api 1/0 0 candidate", "tiers 2/0 0", "tiers 3/1 0", "log 4/0 0", "all 5/0 0"}},
		{"more limits than the policy, and fewer", []wire.Override{override("api", now+1, limit(50, 60)), override("tiers", now+1, limit(7))}, "", false,
			[]string{"api 0/0 1 own 50/1m/50", "api 0/1 1 own 60/2m/60", "api 1/0 0 candidate", "tiers 2/0 1 own 7/1m/7", "log 4/0 0", "all 5/0 0"}},
		{"one where the tier has none", []wire.Override{override("tiers", now+1, limit(7))}, "gold", false,
			[]string{"api 0/0 0", "api 1/0 0 candidate", "tiers 2/0 1 own 7/1m/7", "log 4/0 0", "all 5/0 0"}},
		{"no limit", []wire.Override{override("api", now+1, nil)}, "", false, []string{"tiers 2/0 0", "tiers 3/1 0", "log 4/0 0", "all 5/0 0"}},
		{"one that has ended", []wire.Override{override("api", now, limit(50))}, "", false,
			[]string{"api 0/0 1", "api 1/0 0 candidate", "tiers 2/0 0", "tiers 3/1 0", "log 4/0 0", "all 5/0 0"}},
		{"one that does not fit the algorithm sleeps", []wire.Override{override("log", now+1, limit(5000))}, "gold", false,
			[]string{"api 0/0 0", "api 1/0 0 candidate", "log 4/0 1", "all 5/0 0"}},
		{"one of a policy that is gone, and one that is not by consumer", []wire.Override{override("old", now+1, limit(5)), override("all", now+1, limit(5))}, "gold", false,
			[]string{"api 0/0 0", "api 1/0 0 candidate", "log 4/0 0", "all 5/0 0"}},
	} {
		k := &known{now: now, turn: 7, unsure: c.unsure, tiers: map[keyhash.Key]string{personKey("alice"): c.tier},
			special: map[keyhash.Key][]byte{personKey("alice"): wire.AppendSpecial(nil, wire.Special{Overrides: c.has})}}
		a := request("GET", "h", "/", "x-api-key", "alice")
		a.Consumers = k
		if s := ix.Standing(a); s != match.Open {
			t.Errorf("%s: standing %d", c.name, s)
		}
		hits := ix.Match(a, nil)
		if got := shown(ix, hits); fmt.Sprint(got) != fmt.Sprint(c.want) {
			t.Errorf("%s:\n%q, want\n%q", c.name, got, c.want)
		}
		if key, turn := ix.Person(); k.asked != 1 || turn != 7 || key != personKey("alice") {
			t.Errorf("%s: %d questions, turn %d, consumer %v", c.name, k.asked, turn, key)
		}
		b := request("GET", "h", "/", "x-api-key", "alice")
		b.Consumers = &known{tiers: k.tiers}
		for _, h := range hits {
			for _, p := range ix.Match(b, nil) {
				if p.Policy == h.Policy && p.Place == h.Place && p.Candidate == h.Candidate && p.Key != h.Key {
					t.Errorf("%s: the limit changes the bucket of %s", c.name, ix.Text(ix.Policy(h.Policy).Name))
				}
			}
		}
	}
}

func TestABanComesBeforeABypass(t *testing.T) {
	ix := compile(t, people)
	const now = 1000
	special := func(banned, bypass int64) []byte {
		return wire.AppendSpecial(nil, wire.Special{Banned: banned, Bypass: bypass})
	}
	k := &known{now: now, special: map[keyhash.Key][]byte{
		personKey("banned"): special(now+1, 0), personKey("was"): special(now, now), personKey("both"): special(wire.ForGood, wire.ForGood),
		personKey("free"): special(0, wire.ForGood),
	}}
	for _, c := range []struct {
		path string
		keys []string
		want match.Standing
	}{
		{"/", []string{"banned"}, match.Banned}, {"/", []string{"both"}, match.Banned}, {"/open", []string{"banned"}, match.Banned},
		{"/", []string{"free"}, match.Exempt}, {"/", []string{"was"}, match.Open}, {"/", []string{"nobody"}, match.Open},
		{"/", []string{"banned", "banned"}, match.Open}, {"/open", nil, match.Exempt}, {"/", nil, match.Open},
	} {
		var headers []string
		for _, key := range c.keys {
			headers = append(headers, "x-api-key", key)
		}
		a := request("GET", "h", c.path, headers...)
		a.Consumers = k
		if got := ix.Standing(a); got != c.want {
			t.Errorf("%s %v: %d, want %d", c.path, c.keys, got, c.want)
		}
	}
	// Nobody is looked up while there is nobody special, but for a tier.
	quiet := &known{}
	a := request("GET", "h", "/", "x-api-key", "banned")
	a.Consumers = quiet
	if s := ix.Standing(a); s != match.Open || quiet.asked != 0 {
		t.Errorf("standing %d after %d questions", s, quiet.asked)
	}
	if ix.Match(a, nil); quiet.asked != 1 {
		t.Errorf("%d questions for a tier", quiet.asked)
	}
}
