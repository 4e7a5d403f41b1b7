package match_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/weir-proxy/weir/shared/match"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/wire"
)

// mixed is a set of n policies with lists of several lengths, and with classes.
func mixed(n int) string {
	var b strings.Builder
	b.WriteString(`{"version":"weir/v1","identity":{"consumer":[{"header":"x-key"}]},"priorities":[
		{"name":"top","match":{"paths":["/v1/top/**"]}},{"name":"rest"}],"policies":[`)
	for i := range n {
		if i > 0 {
			b.WriteByte(',')
		}
		hosts := make([]string, i%7)
		for at := range hosts {
			hosts[at] = fmt.Sprintf(`"h%d-%d.example.com"`, i, at)
		}
		fmt.Fprintf(&b, `{"name":"p-%d","match":{"hosts":[%s],"methods":["GET","POST"],"paths":["/v1/%d/{a}","/v1/%d/x/**"],
			"headers":[{"name":"x-a","present":true}]},"partition":["consumer","method"],
			"limit":[{"quota":5,"window":"1s"},{"quota":100,"window":"1m"}]}`, i, strings.Join(hosts, ","), i, i)
	}
	b.WriteString(`]}`)
	return b.String()
}

// loadInParts loads a snapshot with as much work at a time, and returns how many parts it took and
// the most elements that one of them added.
func loadInParts(t *testing.T, ix *match.Index, snapshot []byte, work func() int) (parts, most int) {
	t.Helper()
	if err := ix.Begin(snapshot); err != nil {
		t.Fatal(err)
	}
	for done := false; !done; parts++ {
		before := ix.Elements()
		var err error
		if done, err = ix.Continue(work()); err != nil {
			t.Fatal(err)
		}
		most = max(most, ix.Elements()-before)
	}
	return parts, most
}

// An index loaded in parts equals an index loaded at once, for any parts and any earlier content of
// its memory.
func TestAnIndexLoadedInPartsIsTheSame(t *testing.T) {
	const policies = 60
	snapshot := wire.AppendSnapshot(nil, wire.Snapshot{Version: 7, Secret: secret, Set: decode(t, mixed(policies))})
	var whole, parts match.Index
	if err := whole.Load(snapshot); err != nil {
		t.Fatal(err)
	}
	seed := rand.Uint64()
	random := rand.New(rand.NewPCG(seed, 1))
	for range 50 {
		if n, _ := loadInParts(t, &parts, snapshot, func() int { return random.IntN(40) }); n < 10 {
			t.Fatalf("seed %d: %d parts only", seed, n)
		}
		for range 200 {
			i := random.IntN(policies)
			host := "api.example.com"
			if random.IntN(2) == 0 {
				host = fmt.Sprintf("h%d-%d.example.com", i, random.IntN(7))
			}
			path := []string{"/v1/%d/q", "/v1/%d/x/y/z", "/v1/%d", "/v1/top/%d"}[random.IntN(4)]
			a := request("GET", host, fmt.Sprintf(path, i), "x-a", "1", "x-key", "k")
			var m, n match.Matcher
			got, want := n.Match(&parts, a), m.Match(&whole, a)
			if fmt.Sprint(got.Hits, got.Rank) != fmt.Sprint(want.Hits, want.Rank) {
				t.Fatalf("seed %d: %s %s: in parts %+v, at once %+v", seed, host, a.Path, got.Hits, want.Hits)
			}
		}
	}
}

// No part does more work than allowed, except for its current policy: not with thousands of
// policies, nor with a policy that has tens of thousands of patterns.
func TestAPartOfALoadIsBounded(t *testing.T) {
	list := func(format string) string {
		texts := make([]string, policy.MaxListItems)
		for i := range texts {
			texts[i] = fmt.Sprintf(format, i)
		}
		return `["` + strings.Join(texts, `","`) + `"]`
	}
	const work = 1000
	for _, c := range []struct {
		name, document string
		// more is how much the last policy, or its patterns of one host, may add.
		more int
	}{
		{"5000 policies", mixed(5000), 60},
		{"one policy", policies(`{"hosts":` + list("h%d.example.com") + `,"paths":` + list("/v1/%d") + `}`), 3*policy.MaxListItems + 8},
	} {
		t.Run(c.name, func(t *testing.T) {
			snapshot := wire.AppendSnapshot(nil, wire.Snapshot{Version: 7, Set: decode(t, c.document)})
			var ix match.Index
			parts, most := loadInParts(t, &ix, snapshot, func() int { return work })
			if most > work+c.more || parts < ix.Elements()/(work+c.more) {
				t.Errorf("%d elements in %d parts, the largest of %d", ix.Elements(), parts, most)
			}
		})
	}
}
