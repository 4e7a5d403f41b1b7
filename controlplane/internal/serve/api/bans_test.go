package api_test

import (
	"strings"
	"testing"

	"github.com/weir-proxy/weir/controlplane/internal/ground/audit"
	"github.com/weir-proxy/weir/controlplane/internal/serve/api"
)

// bans lists the bans of keys, by policy and reason.
func (p *plane) bans(t *testing.T) (all api.BansAnswer, text string) {
	t.Helper()
	all = decoded[api.BansAnswer](t, p.do(call{who: "eyes", method: "GET", path: "/v1/bans"}))
	var words []string
	for _, b := range all.Bans {
		words = append(words, b.Policy+" "+b.Reason)
	}
	return all, strings.Join(words, ", ")
}

// All bans of keys in force are listed, each ended by the hash that the list has.
func TestBansOfKeysAreListed(t *testing.T) {
	p := withKeysPlane(t)
	if all, text := p.bans(t); text != "" || !all.Durable {
		t.Errorf("before there is one: %+v", all)
	}
	k := p.key(t, call{"ed", "POST", "/v1/keys/api/ban" + alice, nil, `{"reason": "tries passwords",
		"expires_at": "2040-01-02T03:04:05Z"}`})
	p.key(t, call{"ed", "POST", "/v1/keys/here/ban", nil, `{"reason": "floods"}`})
	all, text := p.bans(t)
	if text != "api tries passwords, here floods" {
		t.Fatalf("listed are %s", text)
	}
	one := all.Bans[0]
	if one.Key != k.Key || one.By != "ed" || !one.Since.Equal(k.Ban.Since) || one.Expires.Year() != 2040 ||
		one.Lifted || all.Bans[1].Expires != nil {
		t.Errorf("%+v", all.Bans)
	}
	p.must("PUT", "/v1/enforcement", `{"orders": [{"state": "off", "policy": "here", "reason": "night"}]}`)
	if all, _ = p.bans(t); all.Bans[0].Lifted || !all.Bans[1].Lifted {
		t.Errorf("with policy here off: %+v", all.Bans)
	}
	p.must("PUT", "/v1/enforcement", `{"orders": [{"state": "off", "reason": "night"}]}`)
	if all, _ = p.bans(t); !all.Bans[0].Lifted || !all.Bans[1].Lifted {
		t.Errorf("with all off: %+v", all.Bans)
	}
	lift := call{who: "ed", method: "DELETE", path: "/v1/bans/" + one.Key}
	ended := decoded[api.BansAnswer](t, p.do(lift))
	if len(ended.Bans) != 1 || ended.Bans[0].Key != one.Key || !ended.Durable {
		t.Errorf("ended are %+v", ended)
	}
	if _, text := p.bans(t); text != "here floods" {
		t.Errorf("left are %s", text)
	}
	p.problem(p.do(lift), 404, "not-found")
	audit := p.do(call{who: "eyes", method: "GET", path: "/v1/audit?resource=keys/api/" + one.Key}).Body.String()
	if strings.Count(audit, `"key.unban"`) != 1 {
		t.Errorf("audit %s", audit)
	}
}

// A ban during a rollout is of a key's hashes in both versions: whatever happens to the draft, and
// also if its policy is gone with it, one act ends it, by either hash or by the key.
func TestABanOutlivesItsDraftAndCanBeEnded(t *testing.T) {
	const key = "?partition=alice"
	header := map[string]string{"Content-Type": "application/json"}
	for name, end := range map[string]func(p *plane, hashes []string) string{
		"by the first hash":  func(_ *plane, hashes []string) string { return "/v1/bans/" + hashes[0] },
		"by the second hash": func(_ *plane, hashes []string) string { return "/v1/bans/" + hashes[1] },
		"by the key":         func(*plane, []string) string { return "/v1/keys/a/ban" + key },
	} {
		p := newPlane(t)
		put := func(path, match, set string) {
			t.Helper()
			if w := p.do(call{"ed", "PUT", path, map[string]string{"If-Match": match}, set}); w.Code != 200 {
				t.Fatal(w.Body)
			}
		}
		put("/v1/policyset", `"0"`, otherHeader("x-a"))
		put("/v1/policyset?nodes=50", `"1"`, otherHeader("x-b")+
			"  - {name: only, partition: [consumer], limit: {quota: 9, window: 1h}}\n")
		for _, policy := range []string{"a", "only"} {
			p.key(t, call{"ed", "POST", "/v1/keys/" + policy + "/ban" + key, header, `{"reason": "x"}`})
		}
		if w := p.do(call{"ed", "DELETE", "/v1/rollout", map[string]string{"If-Match": "*"}, ""}); w.Code != 200 {
			t.Fatal(w.Code, w.Body)
		}
		all, text := p.bans(t)
		if text != "a x, a x, only x" || !all.Bans[2].Lifted || all.Bans[0].Lifted {
			t.Fatalf("%s: listed are %s %+v", name, text, all.Bans)
		}
		trail := call{who: "eyes", method: "GET", path: "/v1/audit?resource=keys/a/" + all.Bans[0].Key}
		p.problem(p.do(call{who: "ed", method: "DELETE", path: "/v1/keys/only/ban" + key}), 404, "not-found")
		ends := end(p, []string{all.Bans[0].Key, all.Bans[1].Key})
		for _, path := range []string{ends, "/v1/bans/" + all.Bans[2].Key} {
			if w := p.do(call{who: "ed", method: "DELETE", path: path}); w.Code != 200 {
				t.Errorf("%s: %s: %d %s", name, path, w.Code, w.Body)
			}
		}
		if _, text := p.bans(t); text != "" {
			t.Errorf("%s: left are %s", name, text)
		}
		if text := p.do(trail).Body.String(); strings.Count(text, `"key.ban"`) != 1 ||
			strings.Count(text, `"key.unban"`) != 1 {
			t.Errorf("%s: of one ban and its end the audit has %s", name, text)
		}
	}
}

// The end of a key that two acts banned leaves both in the audit.
func TestTheEndOfTwoBansIsAuditedWhole(t *testing.T) {
	p := newPlane(t)
	ban := call{who: "ed", method: "POST", path: "/v1/keys/a/ban?partition=alice",
		header: map[string]string{"Content-Type": "application/json"}}
	for header, reason := range map[string]string{"x-a": "floods", "x-b": "scans"} {
		p.must("PUT", "/v1/policyset", otherHeader(header))
		ban.body = `{"reason": "` + reason + `"}`
		p.key(t, ban)
	}
	for _, header := range []string{"x-a", "x-b"} {
		p.must("PUT", "/v1/policyset"+map[string]string{"x-b": "?nodes=50"}[header], otherHeader(header))
	}
	p.must("DELETE", "/v1/keys/a/ban?partition=alice", "")
	if all, text := p.bans(t); text != "" {
		t.Errorf("left are %s %+v", text, all)
	}
	audit := decoded[struct{ Entries []audit.Entry }](t, p.do(call{who: "eyes", method: "GET",
		path: "/v1/audit?page_size=1"}))
	before := string(audit.Entries[0].Before)
	if !strings.Contains(before, `"floods"`) || !strings.Contains(before, `"scans"`) {
		t.Errorf("the audit has %s", before)
	}
}

// The ban of a consumer ends by its hash, too, and the rest of its record stays.
func TestTheBanOfAConsumerEndsByItsHash(t *testing.T) {
	for record, want := range map[string]int{
		`{"banned": {"reason": "abuse"}}`:                                                       404,
		`{"banned": {"reason": "abuse"}, "bypass": {"reason": "pays"}}`:                         200,
		`{"banned": {"reason": "abuse", "expires_at": "2040-01-01T00:00:00Z"}, "tier": "free"}`: 200,
	} {
		p := newPlane(t)
		p.must("PUT", "/v1/policyset", "version: weir/v1\nidentity: {consumer: [{header: x-a}], tier: [assignment], "+
			"default_tier: free}\ntiers: [free, paid]\npolicies:\n"+
			"  - {name: a, partition: [consumer], limit: {quota: 10, window: 1m}}\n")
		p.must("PUT", "/v1/consumers/mallory", record)
		list := p.do(call{who: "eyes", method: "GET", path: "/v1/consumers"})
		one := decoded[api.ConsumersAnswer](t, list).Consumers[0]
		lift := call{who: "ed", method: "DELETE", path: "/v1/bans/" + one.Key}
		ended := decoded[api.BansAnswer](t, p.do(lift))
		if len(ended.Bans) != 1 || ended.Bans[0].Policy != "" || ended.Bans[0].Key != one.Key ||
			ended.Bans[0].Reason != "abuse" || !ended.Durable {
			t.Errorf("%s: ended are %+v", record, ended)
		}
		w := p.do(call{who: "eyes", method: "GET", path: "/v1/consumers/mallory"})
		if w.Code != want || strings.Contains(w.Body.String(), `"banned"`) {
			t.Errorf("%s: known is %d %s", record, w.Code, w.Body)
		}
		p.problem(p.do(lift), 404, "not-found")
		trail := p.do(call{who: "eyes", method: "GET", path: "/v1/audit?resource=consumers/" + one.Key}).Body.String()
		if strings.Count(trail, `"action"`) != 2 {
			t.Errorf("%s: the audit has %s", record, trail)
		}
	}
}

// A ban that others change at each attempt is not said to have ended.
func TestAConsumerThatOthersChangeStaysBanned(t *testing.T) {
	p := withKeysPlane(t)
	p.must("PUT", "/v1/consumers/mallory?source=header:x-api-key", `{"banned": {"reason": "abuse"}}`)
	list := call{who: "eyes", method: "GET", path: "/v1/consumers"}
	one := decoded[api.ConsumersAnswer](t, p.do(list)).Consumers[0]
	p.store.mode.Store("outrun")
	p.problem(p.do(call{who: "ed", method: "DELETE", path: "/v1/bans/" + one.Key}), 412, "changed-meanwhile")
	p.store.mode.Store("")
	if now := decoded[api.ConsumersAnswer](t, p.do(list)).Consumers; len(now) != 1 || now[0].Banned == nil {
		t.Errorf("it is %+v", now)
	}
}

func TestRefusedRequestsAboutBans(t *testing.T) {
	p := withKeysPlane(t)
	const none = "/v1/bans/00000000000000000000000000000000"
	p.problem(p.do(call{who: "eyes", method: "GET", path: "/v1/bans?policy=a"}), 400, "bad-request")
	p.problem(p.do(call{method: "GET", path: "/v1/bans"}), 401, "unauthorized")
	p.problem(p.do(call{who: "envoy", method: "GET", path: "/v1/bans"}), 403, "forbidden")
	p.problem(p.do(call{who: "ed", method: "DELETE", path: "/v1/bans/192.0.2.1"}), 400, "bad-request")
	p.problem(p.do(call{method: "DELETE", path: none}), 401, "unauthorized")
	p.problem(p.do(call{who: "eyes", method: "DELETE", path: none}), 403, "forbidden")
	p.problem(p.do(call{who: "ed", method: "DELETE", path: none}), 404, "not-found")
	p.problem(p.do(call{who: "ed", method: "DELETE", path: none,
		header: map[string]string{"Content-Encoding": "gzip"}}), 415, "unsupported-media-type")
	blind := newPlaneOn(t, "away", func(*api.Config) {})
	for range 2 { // An order that is held in memory says nothing of bans.
		blind.problem(blind.do(call{who: "eyes", method: "GET", path: "/v1/bans"}), 503, "store-unavailable")
		blind.problem(blind.do(call{who: "ed", method: "DELETE", path: none}), 503, "store-unavailable")
		blind.must("PUT", "/v1/enforcement", `{"orders": [{"state": "off", "policy": "here", "reason": "night"}]}`)
	}
}
