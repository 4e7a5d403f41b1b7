package wire_test

import (
	"testing"

	"github.com/weir-proxy/weir/shared/match"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/wire"
)

// How requests are read travels with the set, with and without classes; a set that has the defaults
// stays in the format that any filter reads.
func TestHowRequestsAreReadTravels(t *testing.T) {
	classes := []policy.Class{{Name: "all", Rest: true}}
	for _, want := range []wire.Reading{
		{}, {IfSeveral: policy.SeveralJoined}, {PathParameters: policy.CutParameters}, {NotAppended: true},
		{IfSeveral: policy.SeveralFirst, PathParameters: policy.CutParameters, NotAppended: true},
	} {
		for _, priorities := range [][]policy.Class{nil, classes} {
			set := &policy.Set{Identity: policy.Identity{IPv6Prefix: 64, TrustedHops: 1, IfSeveral: want.IfSeveral,
				NotAppended: want.NotAppended}, PathParameters: want.PathParameters, Priorities: priorities}
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
