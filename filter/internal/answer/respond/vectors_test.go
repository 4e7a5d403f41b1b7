package respond_test

import (
	"strings"
	"testing"

	"github.com/weir-proxy/weir/filter/internal/answer/respond"
	"github.com/weir-proxy/weir/filter/internal/decide/limiter"
	"github.com/weir-proxy/weir/shared/answer/answertest"
	"github.com/weir-proxy/weir/shared/dialect"
)

// The filter answers by the vectors, in each dialect. Only the filter's refusals are marked for
// Envoys in front, and have a status in their body.
func TestVectors(t *testing.T) {
	allowed, refused := map[any]bool{}, map[any]bool{}
	const wall = answertest.Wall * 1_000_000
	for _, v := range answertest.Read(t, "../../../../client/testdata/answers.json") {
		req, status := decide(t, v.Document("local"), v.Requests)
		var r respond.Refusal
		message, h := "", &r.Headers
		if status == limiter.Refused {
			r.Write(req, now, wall, true)
			message = string(r.Body)
			r.Write(req, now, wall, false)
		} else {
			h.Limits(req, false, 0, wall)
		}
		got := map[string]string{}
		for i := range h.Len() {
			if name, value := h.At(i); name != "x-envoy-ratelimited" {
				got[name] = string(value)
			}
		}
		body := strings.Replace(string(r.Body), `,"status":429,`, ",", 1)
		if answertest.Lines(got) != answertest.Lines(v.Headers) || body != v.Body || message != v.Message {
			t.Errorf("%s:\n%s\n%s%s\nwant\n%s\n%s%s", v.Name, answertest.Lines(got), body, message,
				answertest.Lines(v.Headers), v.Body, v.Message)
		}
		if headers, is := v.Set["headers"].(map[string]any); is {
			name := headers["legacy"]
			allowed[name], refused[name] = allowed[name] || status == limiter.Allowed, refused[name] || v.Body != ""
		}
	}
	for _, row := range dialect.Legacies {
		if !allowed[row.Name] || !refused[row.Name] {
			t.Errorf("no vector of the dialect %s for an allowed and for a refused request", row.Name)
		}
	}
}
