package cli_test

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/weir-proxy/weir/controlplane/internal/cli"
	"github.com/weir-proxy/weir/controlplane/internal/serve/api"
)

// A problem in the part that a command writes is explained in the words of the command line. A part
// that was there before keeps its path: the line does not have it.
func TestOnlyWhatACommandWritesIsSaidInItsWords(t *testing.T) {
	const before = `{"tier": "free", "banned": {"expires_at": "2030-01-01T00:00:00Z"},
		"overrides": [{"policy": "a", "limit": "unlimited"}, {"policy": "b", "limit": "unlimited"}],
		"orders": [{"state": "off", "percent": 100, "policy": "a"}, {"state": "off", "percent": 100, "policy": "b"}]}`
	t.Setenv("WEIR_TOKEN", adminToken)
	for _, c := range []struct {
		line, wrong string
		want        []string
	}{
		{"consumers set alice gold", "tier banned.expires_at", []string{"<tier>", "banned.expires_at"}},
		{"consumers ban alice --for 1h", "banned.expires_at banned.reason overrides[1].reason",
			[]string{"--until", "--reason", "overrides[1].reason"}},
		{"consumers bypass alice --for 1h", "banned.expires_at bypass.expires_at",
			[]string{"banned.expires_at", "--until"}},
		{"consumers unban alice", "tier overrides[0].policy", []string{"tier", "overrides[0].policy"}},
		{"consumers override alice c 5/1m 6/1h",
			"overrides[1].policy overrides[2].policy overrides[2].limit[1].quota overrides overrides[2].limit",
			[]string{"overrides[1].policy", "<policy>", "<limit>[1] quota", "overrides", "<limit>"}},
		{"consumers override alice a none", "overrides[0].policy", []string{"overrides[0].policy"}},
		{"enforcement set off --policy c --tier t --reason x",
			"orders[1].policy orders[2].policy orders[2].tier orders[2].expires_at orders[2].reason",
			[]string{"orders[1].policy", "--policy", "--tier", "--until", "--reason"}},
		{"enforcement lift --policy a", "orders[0].policy", []string{"orders[0].policy"}},
	} {
		var problems []string
		for _, path := range strings.Fields(c.wrong) {
			problems = append(problems, fmt.Sprintf(`{"path": %q, "reason": "is wrong"}`, path))
		}
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set(api.RequestIDHeader, "12345678")
			if w.Header().Set("ETag", `"1"`); r.Method == http.MethodGet {
				_, _ = io.WriteString(w, before)
				return
			}
			w.Header().Set("Content-Type", api.ProblemType)
			w.WriteHeader(http.StatusUnprocessableEntity)
			_, _ = fmt.Fprintf(w, `{"status": 422, "detail": "no", "problems": [%s]}`, strings.Join(problems, ","))
		}))
		var out, errors bytes.Buffer
		code := cli.Main(append(strings.Fields(c.line), "--server", s.URL),
			cli.Streams{In: strings.NewReader(""), Out: &out, Err: &errors}, cli.Build{Version: "v0.0.0-test"})
		s.Close()
		var got []string
		for line := range strings.Lines(errors.String()) {
			if path, is := strings.CutSuffix(strings.TrimSpace(line), ": is wrong"); is {
				got = append(got, strings.TrimPrefix(path, "weir: "))
			}
		}
		if code == 0 || !slices.Equal(got, c.want) {
			t.Errorf("weir %s: %d\n%s\nwant %q", c.line, code, &errors, c.want)
		}
	}
}
