package match_test

import (
	"fmt"

	"github.com/weir-proxy/weir/shared/match"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/wire"
)

func ExampleMatcher_Match() {
	// The control plane sends a policy set as a snapshot, which each VM of a filter compiles.
	node, _ := policy.ParseJSON([]byte(`{"version":"weir/v1",
		"identity":{"consumer":[{"header":"x-api-key"}]},
		"exempt":{"paths":["/health"]},
		"policies":[
			{"name":"api","partition":["consumer"],"limit":[{"quota":10,"window":"1s"},{"quota":100,"window":"1m"}]},
			{"name":"search","match":{"paths":["/search/**"]},"partition":[],"cost":5,"limit":{"quota":500,"window":"1s"}}]}`))
	set, err := policy.Decode(node)
	if err != nil {
		fmt.Println(err)
		return
	}
	var index match.Index
	if err := index.Load(wire.AppendSnapshot(nil, wire.Snapshot{Version: 1, Set: set})); err != nil {
		fmt.Println(err)
	}

	// One Matcher serves all requests, one after the other.
	var matcher match.Matcher
	for _, path := range []string{"/search/books", "/users", "/health"} {
		request := match.Attributes{
			Method: []byte("GET"), Host: []byte("example.com"), Path: []byte(path),
			Headers: []match.Header{{Name: []byte("x-api-key"), Value: []byte("alice")}},
		}
		result := matcher.Match(&index, &request)
		fmt.Println(path, "is exempt:", result.Access == match.Exempt)
		for _, hit := range result.Hits {
			name := index.Text(index.Policy(hit.Policy).Name)
			limit := index.Limit(hit.Limit)
			fmt.Printf("  %s takes %d of %d each %s\n", name, hit.Cost, limit.Quota, policy.FormatSpan(limit.Window))
		}
	}
	// Output:
	// /search/books is exempt: false
	//   api takes 1 of 10 each 1s
	//   api takes 1 of 100 each 1m
	//   search takes 5 of 500 each 1s
	// /users is exempt: false
	//   api takes 1 of 10 each 1s
	//   api takes 1 of 100 each 1m
	// /health is exempt: true
}
