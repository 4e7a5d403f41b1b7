package cli

import (
	"strings"
	"testing"

	"github.com/weir-proxy/weir/controlplane/internal/serve/api"
)

// A key with a limit of requests in flight is printed with the nodes that hold its permits.
func TestPrintHolders(t *testing.T) {
	var out strings.Builder
	err := printKey(&out, api.KeyAnswer{Policy: "jobs", Key: "ab", Durable: true, Buckets: []api.BucketAnswer{
		{Limit: "10 per 1m", Burst: 10, Level: 10},
		{Limit: "20 in flight", Burst: 20, Level: 13, Used: 7, Leased: 7, FullAfterSeconds: 9,
			Holders: []api.HolderAnswer{
				{Node: "envoy-1\n", Boot: "ab", Permits: 7, EndsAfterSeconds: 9},
			}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	_, got, _ := strings.Cut(out.String(), "\n\n")
	lines := strings.Split(got, "\n")
	if len(lines) != 4 || lines[0] != "Nodes that hold permits of 20 in flight:" ||
		strings.Join(strings.Fields(lines[1]), " ") != "NODE PROCESS PERMITS ENDS IN" ||
		!strings.HasPrefix(lines[2], `envoy-1`) || !strings.HasSuffix(lines[2], "9s") {
		t.Errorf("%q", lines)
	}
}
