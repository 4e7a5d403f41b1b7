package wire_test

import (
	"testing"

	"github.com/weir-proxy/weir/shared/match"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/spelling"
	"github.com/weir-proxy/weir/shared/wire"
)

// How requests are read travels with the set, with and without classes.
func TestHowRequestsAreReadTravels(t *testing.T) {
	classes := []policy.Class{{Name: "all", Rest: true}}
	for _, want := range []wire.Reading{
		{}, {IfSeveral: policy.SeveralJoined}, {Routing: spelling.CutParameters}, {NotAppended: true},
		{Routing: spelling.FoldCase}, {Routing: spelling.AnyRouting},
		{IfSeveral: policy.SeveralFirst, Routing: spelling.CutParameters, NotAppended: true},
	} {
		for _, priorities := range [][]policy.Class{nil, classes} {
			set := &policy.Set{Identity: policy.Identity{IPv6Prefix: 64, TrustedHops: 1, IfSeveral: want.IfSeveral,
				NotAppended: want.NotAppended}, Routing: want.Routing, Priorities: priorities}
			var ix match.Index
			if err := ix.Load(wire.AppendSnapshot(nil, wire.Snapshot{Version: 1, Set: set})); err != nil {
				t.Fatal(err)
			}
			if got := ix.Reading(); got != want {
				t.Errorf("%+v became %+v", want, got)
			}
		}
	}
}
