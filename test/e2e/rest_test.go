package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/weir-proxy/weir/tools/stack"
)

// A limit that is edited by REST is in force at the Envoy within a second, and so is the old one
// after a rollback. The slower of two editors is refused, and the document keeps its comments.
func TestAPolicyIsEditedAndRolledBack(t *testing.T) {
	t.Parallel()
	const document = `version: weir/v1
policies:
  # Agreed in spring.
  - name: edited
    match: {paths: [/edited]}
    partition: []
    limit: {quota: 100, window: 24h} # a day

  - {name: other, match: {paths: [/other]}, partition: [], limit: {quota: 7, window: 24h}}
`
	w := start(t, setup{policies: document})
	e := w.envoys[0]
	shows := func(limit string) func(context.Context) error {
		return func(context.Context) error {
			if a := ask(t, http.MethodPost, e.URL()+"/edited"); !strings.Contains(a.Get("RateLimit-Policy"), limit) {
				return fmt.Errorf("RateLimit-Policy is %s, want %s", a.Get("RateLimit-Policy"), limit)
			}
			return nil
		}
	}
	w.await("the first limit", shows("q=100;"))
	before := w.get("/v1/policies/edited")
	if !strings.HasPrefix(string(before.Body), `{"name":"edited",`) || before.ETag != `"1"` {
		t.Fatalf("%s %s", before.ETag, before.Body)
	}

	// Two editors have read version 1.
	begin := time.Now()
	version, summary := w.write(http.MethodPatch, "/v1/policies/edited", before.ETag, `{"limit": {"quota": 80}}`)
	w.await("the edited limit", shows("q=80;"))
	mustTake(t, "the edited limit", begin, time.Now(), time.Second)
	if version != 2 || summary != "edited: limit 100 per 1d → 80 per 1d" {
		t.Errorf("version %d: %s", version, summary)
	}
	late := w.call(http.MethodPatch, "/v1/policies/other", before.ETag, `{"limit": {"quota": 8}}`)
	if late.Status != http.StatusPreconditionFailed {
		t.Errorf("the slower editor got %d %s", late.Status, late.Body)
	}
	if now := w.get("/v1/policyset"); string(now.Body) != strings.Replace(document, "quota: 100", "quota: 80", 1) {
		t.Errorf("the document became\n%s", now.Body)
	}

	begin = time.Now()
	version, summary = w.write(http.MethodPost, "/v1/versions/1/rollback", `"2"`, "")
	w.await("the first limit again", shows("q=100;"))
	mustTake(t, "the rollback", begin, time.Now(), time.Second)
	if version != 3 || summary != "back to version 1: edited: limit 80 per 1d → 100 per 1d" {
		t.Errorf("version %d: %s", version, summary)
	}
	if now := w.get("/v1/policyset"); string(now.Body) != document || now.ETag != `"3"` {
		t.Errorf("%s: the document became\n%s", now.ETag, now.Body)
	}
}

// call sends a request to the REST API with the ETag ifMatch in If-Match; empty for no header.
func (w *world) call(method, path, ifMatch, body string) stack.Answer {
	w.t.Helper()
	answer, err := w.controlPlane.Call(w.within(patience), method, path, []byte(body), "If-Match", ifMatch)
	if err != nil {
		w.t.Fatal(err)
	}
	return answer
}

func (w *world) get(path string) stack.Answer {
	w.t.Helper()
	answer := w.call(http.MethodGet, path, "", "")
	if answer.Status != http.StatusOK {
		w.t.Fatalf("GET %s: %d %s", path, answer.Status, answer.Body)
	}
	return answer
}

// write makes a change and returns the version that it made and the summary of the change.
func (w *world) write(method, path, ifMatch, body string) (version uint64, summary string) {
	w.t.Helper()
	answer := w.call(method, path, ifMatch, body)
	var said struct {
		Version uint64
		Summary string
	}
	if err := json.Unmarshal(answer.Body, &said); err != nil || answer.Status != http.StatusOK {
		w.t.Fatalf("%s %s: %d %s", method, path, answer.Status, answer.Body)
	}
	return said.Version, said.Summary
}
