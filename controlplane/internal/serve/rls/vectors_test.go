package rls_test

import (
	"testing"
	"time"

	rlspb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/weir-proxy/weir/shared/answer/answertest"
)

// The service answers by the vectors, as the filter does.
func TestVectors(t *testing.T) {
	for _, v := range answertest.Read(t, "../../../../client/testdata/answers.json") {
		answered := func(entries string) *rlspb.RateLimitResponse {
			w := begin(t, v.Document("strict"))
			w.now = time.Unix(answertest.Wall, 0)
			for range v.Requests - 1 {
				w.ask(request("edge", entries))
			}
			return w.ask(request("edge", entries))
		}
		out, got := answered("method=GET"), map[string]string{}
		for _, h := range out.ResponseHeadersToAdd {
			got[h.Key] = h.Value
		}
		message := ""
		if out.OverallCode == rlspb.RateLimitResponse_OVER_LIMIT {
			message = string(answered("method=POST header:content-type=application/grpc").RawBody)
		}
		is, want := answertest.Lines(got), answertest.Lines(v.Headers)
		if is != want || string(out.RawBody) != v.Body || message != v.Message {
			t.Errorf("%s:\n%s\n%s%s\nwant\n%s\n%s%s", v.Name, is, out.RawBody, message, want, v.Body, v.Message)
		}
	}
}
