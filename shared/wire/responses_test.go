package wire_test

import (
	"strings"
	"testing"

	"github.com/weir-proxy/weir/shared/match"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/wire"
)

// The responses of a set are in its message, with and without other parts of a set, up to their
// bounds, and the next set has none of them.
func TestResponsesTravel(t *testing.T) {
	full := policy.Response{
		Status: 599, Body: strings.Repeat("b", policy.MaxBody), ContentType: strings.Repeat("c", policy.MaxText),
		Headers: strings.Repeat("h", policy.MaxHeaderLines),
	}
	classes := []policy.Class{{Name: "all", Rest: true}}
	var ix match.Index
	for _, priorities := range [][]policy.Class{nil, classes} {
		for answer := range policy.AnswerCount {
			set := setWith(answer, full)
			set.Priorities = priorities
			if err := ix.Load(wire.AppendSnapshot(nil, wire.Snapshot{Version: 1, Set: set})); err != nil {
				t.Fatal(err)
			}
			for to := range policy.AnswerCount {
				r := ix.Response(to)
				got := policy.Response{Status: r.Status, Body: string(ix.Text(r.Body)),
					ContentType: string(ix.Text(r.ContentType)), Headers: string(ix.Text(r.Headers))}
				if got != set.Responses[to] {
					t.Errorf("%s of %s: %.99v", policy.Answers[to], policy.Answers[answer], got)
				}
			}
		}
		if err := ix.Load(wire.AppendSnapshot(nil, wire.Snapshot{Set: &policy.Set{
			Identity: policy.Identity{IPv6Prefix: 64}, Priorities: priorities}})); err != nil {
			t.Fatal(err)
		}
		for to := range policy.AnswerCount {
			if ix.Response(to) != (wire.Response{}) {
				t.Errorf("%s outlives its set", policy.Answers[to])
			}
		}
	}
	for _, one := range []policy.Response{
		{Status: 399}, {Status: 600}, {Body: full.Body + "b"}, {ContentType: full.ContentType + "c"},
		{Headers: full.Headers + "h"},
	} {
		if ix.Load(wire.AppendSnapshot(nil, wire.Snapshot{Set: setWith(policy.AnswerSuspended, one)})) == nil {
			t.Errorf("accepted beyond a bound: %.60v", one)
		}
	}
}

func setWith(answer policy.Answer, one policy.Response) *policy.Set {
	set := &policy.Set{Identity: policy.Identity{IPv6Prefix: 64}}
	set.Responses = make([]policy.Response, policy.AnswerCount)
	set.Responses[answer] = one
	return set
}
