package api_test

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"
	"time"

	"github.com/weir-proxy/weir/controlplane/internal/serve/api"
)

// changesAnswer is what /v1/changes answers.
type changesAnswer struct {
	Cursor  string   `json:"cursor"`
	Changed []string `json:"changed"`
}

func (p *plane) changes(query string) changesAnswer {
	p.t.Helper()
	return decoded[changesAnswer](p.t, p.do(call{who: "eyes", method: "GET", path: "/v1/changes" + query}))
}

// A follower hears of each kind of change, and of no other topic.
func TestChangesAreFollowed(t *testing.T) {
	p := newPlane(t)
	p.put(`"0"`, byConsumer)
	got := p.changes("")
	if len(got.Changed) != 6 {
		t.Errorf("the first answer has %v", got)
	}
	for _, c := range []struct {
		topic  string
		change func() *httptest.ResponseRecorder
	}{
		{"policyset", func() *httptest.ResponseRecorder { return p.put(`"1"`, byConsumer+"\n# again") }},
		{"enforcement", func() *httptest.ResponseRecorder {
			return p.do(call{"ed", "PUT", "/v1/enforcement", map[string]string{"If-Match": "*"},
				`{"orders": [{"state": "off", "reason": "now"}]}`})
		}},
		{"consumers", func() *httptest.ResponseRecorder {
			return p.do(call{"ed", "PUT", "/v1/consumers/alice?source=header:x-api-key",
				map[string]string{"If-Match": `"0"`}, `{"tier": "premium"}`})
		}},
		{"nodes", func() *httptest.ResponseRecorder {
			return p.do(call{who: "envoy", method: "GET", path: "/node/v1/snapshot?after=2&node=new&applied=2&wait=0s"})
		}},
	} {
		before := got
		if w := c.change(); w.Code >= http.StatusBadRequest {
			t.Fatalf("%s: %d %s", c.topic, w.Code, w.Body)
		}
		for got.Cursor == before.Cursor || slices.Equal(got.Changed, []string{"counts"}) {
			before.Cursor = got.Cursor
			got = p.changes("?wait=10&since=" + got.Cursor)
		}
		if !slices.Contains(got.Changed, c.topic) || len(got.Changed) > 2 {
			t.Errorf("after a change of %s: %v", c.topic, got.Changed)
		}
	}
}

// Only the counts change: the answer comes at the end of the wait, and at the end of the process.
func TestWaitingForChangesEnds(t *testing.T) {
	stopping, stop := context.WithCancel(t.Context())
	p := newPlaneOn(t, "", func(c *api.Config) { c.Stopping = stopping })
	cursor := p.changes("").Cursor
	if got := p.changes("?since=" + cursor); len(got.Changed) > 1 {
		t.Errorf("without a wait: %v", got)
	}
	ended := make(chan changesAnswer)
	go func() { ended <- p.changes("?wait=10&since=" + cursor) }()
	stop()
	select {
	case got := <-ended:
		if len(got.Changed) > 1 {
			t.Errorf("at the end of the process: %v", got)
		}
	case <-time.After(9 * time.Second):
		t.Error("the end of the process does not end the wait")
	}
}

func TestWrongCursorsAndWaitsAreRefused(t *testing.T) {
	p := newPlane(t)
	for _, query := range []string{
		"since=x", "since=1.2.3.4.5", "since=1.2.3.4.5.99999999999999999999", "wait=11", "wait=-1", "wait=2s",
		"after=1",
	} {
		p.problem(p.do(call{who: "eyes", method: "GET", path: "/v1/changes?" + query}), 400, "bad-request")
	}
	p.problem(p.do(call{who: "envoy", method: "GET", path: "/v1/changes"}), 403, "forbidden")
}

// More followers than a replica has room for are asked to come back later.
func TestFollowersAreBounded(t *testing.T) {
	p := newPlane(t)
	cursor := p.changes("").Cursor
	ctx, leave := context.WithCancel(t.Context())
	left := make(chan struct{})
	waiting := 0
	for ; waiting < 256; waiting++ {
		go func() {
			for since := cursor; ctx.Err() == nil; { // Each follows on when something has changed.
				r := httptest.NewRequest("GET", "/v1/changes?wait=10&since="+since, nil).WithContext(ctx)
				r.Header.Set("Authorization", "Bearer token of eyes")
				w := httptest.NewRecorder()
				p.handler.ServeHTTP(w, r)
				var got changesAnswer
				if err := json.Unmarshal(w.Body.Bytes(), &got); err == nil && got.Cursor != "" {
					since = got.Cursor
				}
			}
			left <- struct{}{}
		}()
	}
	for end := time.Now().Add(9 * time.Second); ; {
		w := p.do(call{who: "root", method: "GET", path: "/v1/changes?since=" + cursor})
		if w.Code == http.StatusTooManyRequests {
			if w.Header().Get("Retry-After") != "5" {
				t.Errorf("%v", w.Header())
			}
			break
		}
		if time.Now().After(end) {
			t.Fatalf("%d %s beside %d followers", w.Code, w.Body, waiting)
		}
	}
	leave()
	for range waiting {
		<-left
	}
}
