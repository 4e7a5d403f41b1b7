package api_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/weir-proxy/weir/controlplane/internal/serve/api"
	"github.com/weir-proxy/weir/shared/answer/answertest"
	"github.com/weir-proxy/weir/shared/keyhash"
)

// An explanation predicts the answers of the filter and of the rate limit service by the vectors,
// and callers read the same figures at /v1/usage.
func TestVectors(t *testing.T) {
	now := func() time.Time { return time.Unix(answertest.Wall, 0) }
	for _, v := range answertest.Read(t, "../../../../client/testdata/answers.json") {
		v.Set["identity"] = map[string]any{"consumer": []any{map[string]any{"header": "x-api-key"}}}
		v.Policy["partition"] = []string{"consumer"}
		p := newPlaneAt(t, now, "", func(*api.Config) {})
		p.eventually("/readyz", 200)
		if w := p.put(`"0"`, v.Document("strict")); w.Code != 200 {
			t.Fatalf("%s: %d %s", v.Name, w.Code, w.Body)
		}
		spent := v.Requests
		if v.Body != "" {
			spent-- // The last one is refused.
		}
		k := p.key(t, call{who: "eyes", method: "GET", path: "/v1/keys/users?partition=consumer:alice"})
		for i, b := range k.Buckets {
			bucket, err := keyhash.Parse(b.Bucket)
			if err != nil {
				t.Fatal(err)
			}
			if spent > 0 {
				p.spend(t, bucket, uint32(i), int64(spent))
			}
		}
		used := decoded[api.UsageAnswer](t, p.do(usage("alice")))
		var want struct {
			RetryAfter int64 `json:"retry_after"`
			Policies   [][]any
		}
		if err := json.Unmarshal(v.Want, &want); err != nil {
			t.Fatal(err)
		}
		for i, of := range want.Policies {
			is := used.Limits[i]
			if figures := fmt.Sprint(is.Quota, is.Remaining); figures != fmt.Sprint(of[1], of[2]) {
				t.Errorf("%s: at /v1/usage %s of %s, want %v", v.Name, figures, is.Limit, of[1:3])
			}
		}
		a := p.explain(`{"url": "/", "headers": [{"name": "x-api-key", "value": "alice"}]}`).Answer
		got := fmt.Sprintf("%s %d %d %s", a.Verdict, a.Status, a.RetryAfterSeconds, a.Sentence)
		expected := "passes 0 0 It passes."
		if v.Body != "" {
			expected = fmt.Sprintf("refused %d %d %s", http.StatusTooManyRequests, want.RetryAfter, v.Message)
		}
		if got != expected {
			t.Errorf("%s: %s, want %s", v.Name, got, expected)
		}
	}
}
