package policy_test

import (
	"strings"
	"testing"

	"github.com/weir-proxy/weir/shared/penalty"
	"github.com/weir-proxy/weir/shared/quota"
)

func penal(partition, text string) string {
	return `{"version":"weir/v1","identity":{"consumer":[{"header":"x-api-key"}]},"policies":[{"name":"a","partition":` + partition +
		`,"limit":{"quota":9,"window":"1m"},"penalty":` + text + `}]}`
}

func TestPenalties(t *testing.T) {
	after := penalty.Rule{Refusals: 5, Within: quota.Minute}
	change := func(f func(*penalty.Rule)) penalty.Rule {
		r := after
		r.For, r.Factor, r.Max, r.Forget, r.Jitter = quota.Minute, 2, quota.Day, quota.Hour, 10
		f(&r)
		return r
	}
	for text, want := range map[string]penalty.Rule{
		`{"after":{"refusals":5,"within":"1m"}}`:                change(func(*penalty.Rule) {}),
		`{"after":{"refusals":5,"within":"1m"},"for":"48h"}`:    change(func(r *penalty.Rule) { r.For, r.Max = 48*quota.Hour, 48*quota.Hour }),
		`{"after":{"refusals":5,"within":"1m"},"jitter":"0%"}`:  change(func(r *penalty.Rule) { r.Jitter = 0 }),
		`{"after":{"refusals":5,"within":"1m"},"scope":"all"}`:  change(func(r *penalty.Rule) { r.All = true }),
		`{"after":{"refusals":5,"within":"1m"},"extend":false}`: change(func(*penalty.Rule) {}),
		`{"after":{"refusals":9,"within":"1s"},"for":"2s","factor":3,"max":"9s","forget":"4s","jitter":"100%","extend":true,"shadow":true,"scope":"policy"}`: {
			Refusals: 9, Within: quota.Second, For: 2 * quota.Second, Factor: 3, Max: 9 * quota.Second,
			Forget: 4 * quota.Second,
			Jitter: 100, Extend: true, Shadow: true},
	} {
		set, err := decode(t, penal(`["consumer"]`, text))
		if err != nil || *set.Policies[0].Penalty != want {
			t.Errorf("%s: %+v (%v), want %+v", text, set, err, want)
		}
	}
	const good = `"after":{"refusals":5,"within":"1m"}`
	for _, c := range []struct{ partition, text, path, reason string }{
		{`["consumer"]`, `{}`, "policies[0].penalty.after", "is missing"},
		{`["consumer"]`, `5`, "policies[0].penalty", "must be a mapping"},
		{`["consumer"]`, `{"after":{"within":"1m"}}`, "policies[0].penalty.after.refusals", "is missing"},
		{`["consumer"]`, `{"after":{"refusals":5}}`, "policies[0].penalty.after.within", "is missing"},
		{`["consumer"]`, `{"after":{"refusals":0,"within":"1m"}}`, "policies[0].penalty.after.refusals", "from 1 to 10000"},
		{`["consumer"]`, `{"after":{"refusals":1,"within":"25h"}}`, "policies[0].penalty.after.within", "from 1s to 1d"},
		{`["consumer"]`, `{` + good + `,"for":"2m","max":"1m"}`, "policies[0].penalty.max", "is shorter than for"},
		{`["consumer"]`, `{` + good + `,"factor":11}`, "policies[0].penalty.factor", "from 1 to 10"},
		{`["consumer"]`, `{` + good + `,"forget":"0s"}`, "policies[0].penalty.forget", "from 1s"},
		{`["consumer"]`, `{` + good + `,"jitter":"101%"}`, "policies[0].penalty.jitter", "must be a percentage from 0% to 100%"},
		{`["consumer"]`, `{` + good + `,"jitter":"-1%"}`, "policies[0].penalty.jitter", "must be a percentage from 0% to 100%"},
		{`["consumer"]`, `{` + good + `,"jitter":10}`, "policies[0].penalty.jitter", "must be a percentage from 0% to 100%"},
		{`["consumer"]`, `{` + good + `,"jitter":"+1%"}`, "policies[0].penalty.jitter", "must be a percentage from 0% to 100%"},
		{`["consumer"]`, `{` + good + `,"jitter":"%"}`, "policies[0].penalty.jitter", "must be a percentage from 0% to 100%"},
		{`["consumer"]`, `{` + good + `,"extend":"yes"}`, "policies[0].penalty.extend", "true or false"},
		{`["consumer"]`, `{` + good + `,"scope":"node"}`, "policies[0].penalty.scope", "policy, all"},
		{`["consumer"]`, `{` + good + `,"steps":[]}`, "policies[0].penalty.steps", ""},
		{`[]`, `{` + good + `}`, "policies[0].penalty", "tells callers apart"},
		{`["method","path"]`, `{` + good + `}`, "policies[0].penalty", "tells callers apart"},
		{`["client_ip"]`, `{` + good + `,"scope":"all"}`, "policies[0].penalty.scope", "partition contains consumer"},
	} {
		_, err := decode(t, penal(c.partition, c.text))
		if err == nil || !strings.Contains(err.Error(), c.path+": ") && !strings.Contains(err.Error(), c.path+" ") ||
			!strings.Contains(err.Error(), c.reason) {
			t.Errorf("%s %s: %v, want %s %s", c.partition, c.text, err, c.path, c.reason)
		}
	}
}

func TestFewPenaltiesHoldUnderEveryPolicy(t *testing.T) {
	one := `{"name":"NAME","partition":["consumer"],"limit":{"quota":9,"window":"1m"},"penalty":{"after":{"refusals":5,"within":"1m"},"scope":"all"}}`
	var all []string
	for i := range 6 {
		all = append(all, strings.Replace(one, "NAME", string(rune('a'+i)), 1))
	}
	doc := `{"version":"weir/v1","identity":{"consumer":[{"header":"k"}]},"policies":[`
	if _, err := decode(t, doc+strings.Join(all[:4], ",")+"]}"); err != nil {
		t.Error(err)
	}
	_, err := decode(t, doc+strings.Join(all, ",")+"]}")
	if err == nil || !strings.Contains(err.Error(), "policies[4].penalty.scope") ||
		strings.Contains(err.Error(), "policies[5]") {
		t.Error(err)
	}
}

func TestNotesSayWhatAPenaltyDoes(t *testing.T) {
	set, err := decode(t, penal(`["consumer"]`, `{"after":{"refusals":5,"within":"1m"},"scope":"all","shadow":true}`))
	if err != nil {
		t.Fatal(err)
	}
	notes := strings.Join(set.Policies[0].Notes(3), "\n")
	for _, want := range []string{
		"after 5 refusals within 1m by one Envoy, all Envoys refuse the caller under every policy for 1m, 2 times as " +
			"long for each further offence, at most 1d",
		"one level is forgotten after each 1h without a penalty",
		"a caller who spreads over 3 Envoys can be refused 12 times within 1m without a penalty",
		"the penalty is in shadow",
	} {
		if !strings.Contains(notes, want) {
			t.Errorf("%s\nlacks: %s", notes, want)
		}
	}
}
