package e2e

import (
	"net/http"
	"strconv"
	"strings"
	"testing"
)

// Envoy says which cluster its route chooses before the request goes there, and a policy counts by
// it. A request that goes to no cluster is left alone.
func TestAnUpstreamIsAPartOfAKey(t *testing.T) {
	t.Parallel()
	answers := func(config string) string {
		return strings.Replace(config, "- match: {prefix: /}\n",
			"- match: {path: /nowhere}\n"+strings.Repeat(" ", 26)+"direct_response: {status: 200}\n"+
				strings.Repeat(" ", 24)+"- match: {prefix: /}\n", 1)
	}
	w := start(t, setup{rewrite: answers, policies: `
version: weir/v1
policies:
  - {name: services, partition: [upstream], limit: {quota: 2, window: 24h}, mode: local}
`})
	if got := statuses(t, 3, w.envoys[0].URL()+"/somewhere"); got != "200 200 429" {
		t.Errorf("a cluster: %s", got)
	}
	if got := statuses(t, 3, w.envoys[0].URL()+"/nowhere"); got != "200 200 200" {
		t.Errorf("no cluster: %s", got)
	}
}

// allowed is 1 if a request is let through, 0 if it is refused.
func allowed(t *testing.T, method, url string) int {
	t.Helper()
	req, err := http.NewRequest(method, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	answer, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	switch answer.StatusCode {
	case http.StatusOK:
		return 1
	case http.StatusTooManyRequests:
		return 0
	}
	t.Fatal(method + " " + url + ": " + strconv.Itoa(answer.StatusCode))
	return 0
}
