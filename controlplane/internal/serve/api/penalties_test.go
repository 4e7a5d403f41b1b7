package api_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/weir-proxy/weir/controlplane/internal/fleet/nodes"
	"github.com/weir-proxy/weir/controlplane/internal/serve/api"
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/match"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/wire"
)

const penaltySet = `{"version":"weir/v1","identity":{"consumer":[{"header":"x-api-key"}]},"show":["path"],"policies":[
	{"name":"api","partition":["consumer","method"],"limit":{"quota":5,"window":"1m"},"penalty":{"after":{"refusals":3,"within":"1m"}}},
	{"name":"all","partition":["consumer"],"limit":{"quota":5,"window":"1m"},"penalty":{"after":{"refusals":3,"within":"1m"},"scope":"all"}}]}`

// offend reports penalties as a node does, each of a minute.
func (p *plane) offend(known uint64, items ...wire.Offence) {
	p.t.Helper()
	for i := range items {
		it := &items[i]
		it.Known, it.Level, it.Version = known, 2, 1
		it.Until = time.Now().Add(time.Minute).UnixMilli()
		it.Forgotten = it.Until + 3_600_000
	}
	if got := p.postReport(&wire.Offences{Node: []byte("envoy-1"), Items: items}); got.Code != 204 {
		p.t.Fatalf("a report: %d %s", got.Code, got.Body)
	}
}

// listed are the penalties that a query selects, in words.
func (p *plane) listed(query string) string {
	p.t.Helper()
	got := p.do(call{"eyes", "GET", "/v1/penalties" + query, nil, ""})
	var answer api.PenaltiesAnswer
	if got.Code != 200 || json.Unmarshal(got.Body.Bytes(), &answer) != nil {
		return fmt.Sprintf("%d %s", got.Code, got.Body)
	}
	var all []string
	for _, one := range answer.Penalties {
		all = append(all, fmt.Sprintf("%s %s level %d shadow %v %v", one.Policy, one.Key[:4], one.Level, one.Shadow,
			one.Shown))
	}
	return fmt.Sprintf("%d: %s", answer.Count, strings.Join(all, ", "))
}

// awaitNews polls as a node does until a message about penalties comes.
func (p *plane) awaitNews(after uint64) (m wire.Penalties) {
	p.t.Helper()
	path := fmt.Sprintf("/node/v1/snapshot?node=n&boot=1&after=1&wait=5s&penalties=%d", after)
	got := p.do(call{"envoy", "GET", path, nil, ""})
	if got.Code == 200 && !wire.IsPenalties(got.Body.Bytes()) {
		path += "&mark=" + got.Header().Get("Weir-Mark")
		got = p.do(call{"envoy", "GET", path, nil, ""})
	}
	if got.Code != 200 || wire.DecodePenalties(got.Body.Bytes(), &m) != nil {
		p.t.Fatalf("a poll: %d %q", got.Code, got.Body)
	}
	return m
}

func TestPenaltiesAreListedAndPardoned(t *testing.T) {
	p := newPlane(t)
	if got := p.do(call{"ed", "PUT", "/v1/policyset",
		map[string]string{"If-Match": "*", "Content-Type": "application/json"}, penaltySet}); got.Code >= 300 {
		t.Fatalf("%d %s", got.Code, got.Body)
	}
	secret, err := p.hub.Secret()
	if err != nil {
		t.Fatal(err)
	}
	set, err := policy.ParseJSON([]byte(penaltySet))
	if err != nil {
		t.Fatal(err)
	}
	policies, err := policy.Decode(set)
	if err != nil {
		t.Fatal(err)
	}
	source := policies.Identity.Consumer[0]
	alice, bob := match.ConsumerKey(secret, source, "alice"), match.ConsumerKey(secret, source, "bob")
	partition := match.NewPartition(secret, policies, &policies.Policies[0],
		[]match.Value{{Text: []byte("alice"), Source: source}, {Text: []byte("GET")}}).Key()
	wide := match.WideKey(secret, "all", bob)
	shown := wire.Identity{Consumer: alice, Shown: append([]byte{0, 3}, "/a\n"...)}
	p.offend(0,
		wire.Offence{Key: partition, Policy: []byte("api"), Identity: shown},
		wire.Offence{Key: match.ShadowOf(partition), Policy: []byte("api"), Shadow: true,
			Identity: wire.Identity{Consumer: alice}},
		wire.Offence{Key: wide, Policy: []byte("all"), Identity: wire.Identity{Consumer: bob}})
	m := p.awaitNews(0)
	if len(m.Items) != 3 || m.Revision == 0 {
		t.Fatalf("nodes get %+v", m)
	}
	name := func(k keyhash.Key) string { return k.String()[:4] }
	ofAlice := fmt.Sprintf("2: api %s level 2 shadow true map[], api %s level 2 shadow false map[path:/a.]",
		name(match.ShadowOf(partition)), name(partition))
	ofBob := fmt.Sprintf("1: all %s level 2 shadow false map[]", name(wide))
	for query, want := range map[string]string{
		"?policy=api": ofAlice, "?consumer=alice": ofAlice,
		"?policy=api&partition=consumer:alice&partition=method:GET": ofAlice,
		"?policy=all": ofBob, "?policy=all&partition=bob": ofBob, "?key=" + wide.String(): ofBob,
		"?policy=api&partition=consumer:bob&partition=method:GET": "0: ", "?shadow=true&policy=all": "0: ",
		"?shadow=false&consumer=bob": ofBob,
	} {
		if got := p.listed(query); got != want {
			t.Errorf("%s: %s, want %s", query, got, want)
		}
	}
	first := p.do(call{"eyes", "GET", "/v1/penalties?page_size=2", nil, ""})
	var page api.PenaltiesAnswer
	if err := json.Unmarshal(first.Body.Bytes(), &page); err != nil || page.Count != 3 || len(page.Penalties) != 2 {
		t.Errorf("the first page: %s", first.Body)
	}
	if got := p.listed("?page_token=" + page.Next); !strings.HasPrefix(got, "1: api "+name(partition)) {
		t.Errorf("the second page: %s", got)
	}
	pardon := func(who, query, body string) (int, string) {
		got := p.do(call{who, "POST", "/v1/penalties/pardon" + query,
			map[string]string{"Content-Type": "application/json"}, body})
		return got.Code, strings.TrimSpace(got.Body.String())
	}
	for _, c := range []struct {
		who, query, body string
		code             int
		want             string
	}{
		{"eyes", "?consumer=bob", `{"reason":"x"}`, 403, ""},
		{"ed", "", `{"reason":"x"}`, 400, "say whom to pardon"},
		{"ed", "?consumer=bob", `{"reason":"x","all":true}`, 400, "all is for"},
		{"ed", "?consumer=bob", `{"reason":" "}`, 400, "must say why"},
		{"ed", "?partition=bob", `{"reason":"x"}`, 400, "partition needs policy"},
		{"ed", "?key=" + wide.String(), `{"reason":"x"}`, 200, `{"pardoned":1}`},
		{"ed", "?key=" + wide.String(), `{"reason":"x"}`, 200, `{"pardoned":0}`},
	} {
		if code, got := pardon(c.who, c.query, c.body); code != c.code || !strings.Contains(got, c.want) {
			t.Errorf("%s pardons %s: %d %s", c.who, c.query, code, got)
		}
	}
	after := p.awaitNews(m.Revision)
	if len(after.Items) != 1 || after.Items[0].Key != wide || after.Items[0].Level != 0 {
		t.Errorf("after a pardon nodes get %+v", after)
	}
	if code, got := pardon("ed", "", `{"reason":"x","all":true}`); code != 200 {
		t.Errorf("a pardon of all: %d %s", code, got)
	}
	if all := p.awaitNews(after.Revision); all.Cleared != all.Revision || len(all.Items) != 0 {
		t.Errorf("after a pardon of all nodes get %+v", all)
	}
	p.offend(after.Revision, wire.Offence{Key: partition, Policy: []byte("api")}) // From before it.
	if got := p.listed("?ended=true"); got != "0: " {
		t.Errorf("after a pardon of all: %s", got)
	}
}

func TestPenaltiesThatAreRefused(t *testing.T) {
	p := newPlane(t)
	const list, pardon, node = "/v1/penalties", "/v1/penalties/pardon", "/node/v1/report"
	const reason = `{"reason":"x"}`
	get := func(who, query string) call { return call{who: who, method: "GET", path: list + query} }
	post := func(who, query, body string) call {
		return call{who: who, method: "POST", path: pardon + query, body: body}
	}
	put := func(set string) {
		header := map[string]string{"If-Match": "*", "Content-Type": "application/json"}
		if got := p.do(call{"ed", "PUT", "/v1/policyset", header, set}); got.Code >= 300 {
			t.Fatalf("%d %s", got.Code, got.Body)
		}
	}
	put(`{"version":"weir/v1","policies":[{"name":"api","partition":["client_ip"],"limit":{"quota":1,"window":"1m"},
		"penalty":{"after":{"refusals":5,"within":"1m"},"for":"1m"}}]}`)
	encoded := post("ed", "?policy=api", reason)
	encoded.header = map[string]string{"Content-Encoding": "gzip"}
	for name, c := range map[string]struct {
		call   call
		status int
		kind   string
	}{
		"no token":                {get("", ""), 401, "unauthorized"},
		"a node lists":            {get("envoy", ""), 403, "forbidden"},
		"no key":                  {get("eyes", "?key=12"), 400, "bad-request"},
		"no page":                 {get("eyes", "?page_token=x"), 400, "bad-request"},
		"no policy":               {get("eyes", "?policy=none&partition=x"), 404, "not-found"},
		"no consumers":            {get("eyes", "?consumer=x"), 409, "no-consumers"},
		"no token pardons":        {post("", "?policy=api", reason), 401, "unauthorized"},
		"a viewer pardons":        {post("eyes", "?policy=api", reason), 403, "forbidden"},
		"a pardon of no policy":   {post("ed", "?policy=none&partition=x", reason), 404, "not-found"},
		"a pardon of a consumer":  {post("ed", "?consumer=x", reason), 409, "no-consumers"},
		"a large pardon":          {post("ed", "?policy=api", strings.Repeat(" ", 5000)), 413, "too-large"},
		"an encoded pardon":       {encoded, 415, "unsupported-media-type"},
		"a pardon without a word": {post("ed", "?policy=api", `{}`), 400, "bad-request"},
		"no token reports":        {call{method: "POST", path: node}, 401, "unauthorized"},
		"a viewer reports":        {call{who: "eyes", method: "POST", path: node}, 403, "forbidden"},
		"a report of nothing":     {call{who: "envoy", method: "POST", path: node, body: "WRRP"}, 400, "bad-request"},
		"a large report": {call{who: "envoy", method: "POST", path: node,
			body: strings.Repeat("x", wire.MaxReport+1)}, 413,
			"too-large"},
	} {
		t.Run(name, func(t *testing.T) { p.problem(p.do(c.call), c.status, c.kind) })
	}
	blind := newPlaneOn(t, "away", func(*api.Config) {})
	blind.problem(blind.do(get("eyes", "")), 503, "store-unavailable")
	p.store.mode.Store("away")
	p.problem(p.do(post("ed", "?policy=api", reason)), 503, "store-unavailable")
}

// If the store does not take the offences of a report, each other section is still taken, once.
func TestOffencesThatAreNotTakenAreNamed(t *testing.T) {
	p := newPlane(t)
	if w := p.put(`"0"`, nodeSet); w.Code != 200 {
		t.Fatal(w.Body)
	}
	r := theirs()
	r.Decisions = &wire.Decisions{Version: 1, Counts: []wire.RefusedCount{{Policy: 2, Refused: 9}}}
	r.Measures = &wire.Measures{Items: []wire.Measure{{Policy: []byte("plain"), ShadowRefused: 2}}}
	p.store.mode.Store("away")
	if w := p.postReport(r); w.Code != 202 || w.Body.Len() > 0 {
		t.Fatalf("without a store: %d %q", w.Code, w.Body)
	}
	p.store.mode.Store("")
	again := wire.Report{Node: r.Node, Boot: 1, Offences: r.Offences}
	if w := p.postReport(&again); w.Code != 204 || w.Body.Len() > 0 {
		t.Fatalf("with a store: %d %q", w.Code, w.Body)
	}
	for len(p.penalised(t)) == 0 {
		time.Sleep(10 * time.Millisecond)
	}
	const want = "plain refused=9 plain requests=9 plain shadow_refused=2 n refused=9 n requests=9 n shadow_refused=2"
	if got := p.counted(); got != want {
		t.Errorf("counted %s, want %s", got, want)
	}
}

// theirs is a report with an offence and a ladder.
func theirs() *wire.Report {
	until := time.Now().Add(time.Minute).UnixMilli()
	return &wire.Report{Node: []byte("n"), Boot: 1, Ladder: &wire.Ladder{Version: 1},
		Offences: &wire.Offences{Items: []wire.Offence{{Key: keyhash.Key{1}, Policy: []byte("login"), Level: 1,
			Until: until, Forgotten: until, Version: 1}}}}
}

// Offences that the store does not take are counted and logged, since their answer is not 5xx. That
// an Envoy does not wait for the answer is no fault of the store.
func TestOffencesThatAreNotTakenAreCounted(t *testing.T) {
	p := newPlane(t)
	if w := p.put(`"0"`, nodeSet); w.Code != 200 {
		t.Fatal(w.Body)
	}
	p.store.mode.Store("away")
	gone, leave := context.WithCancel(t.Context())
	leave()
	for n, ctx := range []context.Context{gone, t.Context()} {
		r := httptest.NewRequestWithContext(ctx, "POST", "/node/v1/report", strings.NewReader(reported(theirs())))
		r.Header.Set("Authorization", "Bearer token of envoy")
		p.handler.ServeHTTP(&recorder{ResponseRecorder: httptest.NewRecorder()}, r)
		text := p.do(call{"", "GET", "/metrics", nil, ""}).Body.String()
		if !strings.Contains(text, fmt.Sprintf("\nweir_penalties_unstored_total %d\n", n)) {
			t.Errorf("after report %d the counter is not %d", n, n)
		}
		if logged := strings.Contains(p.log.String(), "offences cannot be stored"); logged != (n == 1) {
			t.Errorf("after report %d: logged %v", n, logged)
		}
	}
}

// watched calls before with each ladder that it stores.
type watched struct {
	nodes.Store
	before func()
}

func (w *watched) Report(ctx context.Context, key string, r nodes.Reported) (bool, error) {
	w.before()
	return w.Store.Report(ctx, key, r)
}

// Other sections do not delay the offences of a report.
func TestOffencesComeBeforeTheLadder(t *testing.T) {
	var w watched
	p := newPlaneWith(t, func(c *api.Config) { c.Nodes = nodes.New(&w, time.Now) })
	stored, asked := false, false
	w.Store, w.before = p.store, func() {
		text := p.do(call{"", "GET", "/metrics", nil, ""}).Body.String()
		stored, asked = strings.Contains(text, `weir_penalties_begun_total{policy="login"`), true
	}
	if w := p.put(`"0"`, nodeSet); w.Code != 200 {
		t.Fatal(w.Body)
	}
	if w := p.postReport(theirs()); w.Code != 204 || !asked || !stored {
		t.Errorf("%d: asked %v, stored %v", w.Code, asked, stored)
	}
}

const penalSet = `{"version":"weir/v1","policies":[
		{"name":"api","partition":["client_ip"],"limit":{"quota":5,"window":"1m"},
			"penalty":{"after":{"refusals":5,"within":"1m"},"for":"1m","max":"4m","forget":"1h","jitter":"50%"}},
		{"name":"free","partition":["client_ip"],"limit":{"quota":5,"window":"1m"}}]}`

// No penalty is longer than the rule of its policy says, and none of a policy without one counts,
// whatever a node reports, and whichever version it names.
func TestNoNodeMakesPenaltiesLonger(t *testing.T) {
	header := map[string]string{"If-Match": "*", "Content-Type": "application/json"}
	for _, version := range []uint64{1, 0, 99} {
		p := newPlane(t)
		if got := p.do(call{"ed", "PUT", "/v1/policyset", header, penalSet}); got.Code >= 300 {
			t.Fatalf("%d %s", got.Code, got.Body)
		}
		p.reportsTooLong(t, version)
	}
}

// A node may report a penalty by an old version. It is no longer than the rule in force says.
func TestAnOldRuleMakesNoPenaltyLonger(t *testing.T) {
	p := newPlane(t)
	header := map[string]string{"If-Match": "*", "Content-Type": "application/json"}
	shorter := strings.NewReplacer(`"for":"1m","max":"4m"`, `"for":"10s","max":"20s"`).Replace(penalSet)
	for _, set := range []string{penalSet, shorter} {
		if got := p.do(call{"ed", "PUT", "/v1/policyset", header, set}); got.Code >= 300 {
			t.Fatalf("%d %s", got.Code, got.Body)
		}
	}
	late := time.Now().Add(time.Hour).UnixMilli()
	m := wire.Offences{Node: []byte("envoy-1"), Items: []wire.Offence{{Key: keyhash.Key{9}, Policy: []byte("api"),
		Level: 9, Until: late, Forgotten: late, Version: 1}}}
	if got := p.postReport(&m); got.Code != 204 {
		t.Fatalf("%d %s", got.Code, got.Body)
	}
	for len(p.penalised(t)) == 0 {
		time.Sleep(10 * time.Millisecond)
	}
	if one := p.penalised(t)[0]; time.Until(one.Until) > 30*time.Second {
		t.Errorf("%+v", one)
	}
}

func (p *plane) penalised(t *testing.T) []api.PenaltyAnswer {
	t.Helper()
	list := p.do(call{"eyes", "GET", "/v1/penalties", nil, ""})
	var answer api.PenaltiesAnswer
	if err := json.Unmarshal(list.Body.Bytes(), &answer); err != nil {
		t.Fatalf("%v %s", err, list.Body)
	}
	return answer.Penalties
}

// reportsTooLong reports penalties that are longer than their rule allows, by a version.
func (p *plane) reportsTooLong(t *testing.T, version uint64) {
	t.Helper()
	begin := time.Now()
	late := begin.Add(48 * time.Hour).UnixMilli()
	m := wire.Offences{Node: []byte("envoy-1")}
	for n, level := range []uint8{1, 2, 64, 1} {
		o := wire.Offence{Key: keyhash.Key{byte(n + 1)}, Policy: []byte("api"), Level: level, Until: late,
			Forgotten: late + 86_400_000, Version: version}
		if n == 3 {
			o.Policy = []byte("free")
		}
		m.Items = append(m.Items, o)
	}
	got := p.postReport(&m)
	end := time.Now()
	if got.Code != 204 {
		t.Fatalf("%d %s", got.Code, got.Body)
	}
	if news := p.awaitNews(0); len(news.Items) != 3 {
		t.Fatalf("nodes get %+v", news)
	}
	list := p.do(call{"eyes", "GET", "/v1/penalties", nil, ""})
	var answer api.PenaltiesAnswer
	if err := json.Unmarshal(list.Body.Bytes(), &answer); err != nil || answer.Count != 3 {
		t.Fatalf("%v %s", err, list.Body)
	}
	lengths := map[byte]struct {
		level  int
		length time.Duration
	}{1: {1, 90 * time.Second}, 2: {2, 180 * time.Second}, 3: {3, 240 * time.Second}}
	for _, one := range answer.Penalties {
		key, err := keyhash.Parse(one.Key)
		want := lengths[key[0]]
		from, to := begin.Add(want.length).Truncate(time.Millisecond), end.Add(want.length)
		if err != nil || one.Level != want.level || one.Until.Before(from) || one.Until.After(to) ||
			!one.Forgotten.Equal(one.Until.Add(time.Duration(want.level)*time.Hour)) {
			t.Errorf("%+v, want level %d and an end from %v to %v", one, want.level, from, to)
		}
	}
}

// keysBy puts a first policy set into force, and returns the secret of the keys.
func (p *plane) keysBy(set string) [16]byte {
	p.t.Helper()
	if got := p.put(`"0"`, set); got.Code != 200 {
		p.t.Fatalf("%d %s", got.Code, got.Body)
	}
	secret, err := p.hub.Secret()
	if err != nil {
		p.t.Fatal(err)
	}
	return secret
}

// The explanation shows a refusal by a penalty if the Envoys refuse: with scope all, every request
// that meets a limit in force; in shadow, no request.
func TestPenaltiesAreExplainedAsTheyHold(t *testing.T) {
	p := newPlane(t)
	const set = `{"version":"weir/v1","identity":{"consumer":[{"header":"x-api-key"}]},"policies":[
		{"name":"all","match":{"paths":["/all"]},"partition":["consumer"],"limit":{"quota":5,"window":"1m"},
			"penalty":{"after":{"refusals":3,"within":"1m"},"scope":"all"}},
		{"name":"own","match":{"paths":["/own"]},"partition":["client_ip"],"limit":{"quota":5,"window":"1m"},
			"penalty":{"after":{"refusals":3,"within":"1m"}}},
		{"name":"other","match":{"paths":["/other"]},"partition":[],"limit":{"quota":5,"window":"1m"}}]}`
	secret := p.keysBy(set)
	says := func(path, want string) {
		t.Helper()
		got := inWords(p.explain(`{"method":"GET","url":"` + path + `","client_ip":"192.0.2.1",
			"headers":[{"name":"x-api-key","value":"alice"}]}`))
		if !strings.HasPrefix(got, want) {
			t.Errorf("%s: %s, want %s", path, got, want)
		}
	}
	says("/other", "open passes other")
	alice := match.WideKey(secret, "all", match.ConsumerKey(secret, policy.Source{Kind: policy.SourceHeader,
		Name: "x-api-key"}, "alice"))
	address, err := keyhash.Parse(p.explain(`{"method":"GET","url":"/own","client_ip":"192.0.2.1"}`).Policies[0].Key)
	if err != nil {
		t.Fatal(err)
	}
	p.offend(0, wire.Offence{Key: alice, Policy: []byte("all")}, wire.Offence{Key: address, Policy: []byte("own")})
	for deadline := time.Now().Add(10 * time.Second); len(p.penalised(t)) < 2 && time.Now().Before(deadline); {
		time.Sleep(10 * time.Millisecond)
	}
	says("/all", "open refused 429 all penalty all=enforce/refused[consumer:alice]")
	says("/other", "open refused 429 all penalty other=enforce/passes[]")
	says("/none", "open passes")
	p.orders(t, "*", `{"orders": [{"state": "shadow", "policy": "all", "reason": "x"},
		{"state": "off", "policy": "own", "reason": "x"}]}`)
	says("/all", "open passes all=shadow/passes[consumer:alice]")
	says("/other", "open passes other=enforce/passes[]")
	says("/own", "open passes own=off/passes[client_ip:192.0.2.1]")
	p.orders(t, "*", `{"orders": [{"state": "shadow", "policy": "own", "reason": "x"}]}`)
	says("/own", "open passes own=shadow/passes[client_ip:192.0.2.1]")
	p.offend(0, wire.Offence{Key: match.ShadowOf(address), Policy: []byte("own"), Shadow: true})
	for deadline := time.Now().Add(10 * time.Second); len(p.penalised(t)) < 3 && time.Now().Before(deadline); {
		time.Sleep(10 * time.Millisecond)
	}
	says("/own", "open passes own=shadow/refused[client_ip:192.0.2.1]")
}

// A penalty comes before buckets and before missing values of a request, and names the longest
// wait. A suspended limit comes before it. A cost that no bucket ever holds takes its place: no
// wait helps there.
func TestAPenaltyGivesWayWhereNoWaitHelps(t *testing.T) {
	p := newPlane(t)
	const set = `{"version":"weir/v1","identity":{"consumer":[{"header":"x-api-key"}]},"policies":[
		{"name":"lacks","match":{"paths":["/lacks"]},"partition":["header:x-tenant"],"if_absent":"deny",
			"limit":{"quota":5,"window":"1m"}},
		{"name":"slow","match":{"paths":["/slow"]},"partition":[],"mode":"strict","limit":{"quota":1,"window":"1h"}},
		{"name":"zero","match":{"paths":["/zero"]},"partition":[],"limit":{"quota":0,"window":"1m"}},
		{"name":"dear","match":{"paths":["/dear"]},"partition":["client_ip"],"cost":{"header":"x-rows","max":500},
			"limit":{"quota":5,"window":"1m"},"penalty":{"after":{"refusals":3,"within":"1m"}}},
		{"name":"wide","match":{"paths":["/wide","/zero"]},"partition":["consumer"],"limit":{"quota":5,"window":"1m"},
			"penalty":{"after":{"refusals":3,"within":"1m"},"scope":"all"}}]}`
	secret := p.keysBy(set)
	explain := func(path, caller string, rows int) api.ExplainedAnswer {
		return p.explain(fmt.Sprintf(`{"method":"GET","url":%q,"client_ip":"192.0.2.1","headers":[
			{"name":"x-api-key","value":%q},{"name":"x-rows","value":"%d"}]}`, path, caller, rows))
	}
	slow, err := keyhash.Parse(explain("/slow", "bob", 1).Policies[0].Limits[0].Bucket)
	if err != nil {
		t.Fatal(err)
	}
	p.spend(t, slow, 0, 1)
	says := func(path, caller string, rows int, want string, from, to int64) {
		t.Helper()
		got := explain(path, caller, rows)
		if wait := got.Answer.RetryAfterSeconds; inWords(got) != want || wait < from || wait > to {
			t.Errorf("%s of %s: %s, in %d s; want %s, in %d to %d", path, caller, inWords(got), wait, want, from, to)
		}
	}
	address, err := keyhash.Parse(explain("/dear", "bob", 1).Policies[0].Key)
	if err != nil {
		t.Fatal(err)
	}
	says("/lacks", "bob", 1, "open refused 403 lacks absent lacks=enforce/refused[header:x-tenant:-]", 0, 0)
	says("/dear", "bob", 9, "open refused 429 dear too_dear dear=enforce/refused[client_ip:192.0.2.1]:5", 0, 0)
	alice := match.WideKey(secret, "wide", match.ConsumerKey(secret, policy.Source{Kind: policy.SourceHeader,
		Name: "x-api-key"}, "alice"))
	p.offend(0, wire.Offence{Key: alice, Policy: []byte("wide")}, wire.Offence{Key: address, Policy: []byte("dear")})
	for deadline := time.Now().Add(10 * time.Second); len(p.penalised(t)) < 2 && time.Now().Before(deadline); {
		time.Sleep(10 * time.Millisecond)
	}
	says("/lacks", "alice", 1, "open refused 429 wide penalty lacks=enforce/refused[header:x-tenant:-]", 1, 200)
	says("/slow", "bob", 1, "open refused 429 slow quota slow=enforce/refused[]:0", 201, 3601)
	says("/slow", "alice", 1, "open refused 429 wide penalty slow=enforce/refused[]:0", 201, 3601)
	says("/dear", "bob", 1, "open refused 429 dear penalty dear=enforce/refused[client_ip:192.0.2.1]:5", 1, 200)
	says("/dear", "bob", 9, "open refused 429 dear too_dear dear=enforce/refused[client_ip:192.0.2.1]:5", 0, 0)
	says("/dear", "alice", 9, "open refused 429 dear too_dear dear=enforce/refused[client_ip:192.0.2.1]:5", 0, 0)
	says("/zero", "alice", 1,
		"open refused 429 zero suspended zero=enforce/refused[] wide=enforce/refused[consumer:alice]:5", 0, 0)
}
