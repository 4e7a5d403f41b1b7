package app_test

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/test/support/logtest"
	"github.com/weir-proxy/weir/test/support/otlptest"
	"github.com/weir-proxy/weir/test/support/redistest"
)

const (
	callersTrace = "4bf92f3577b34da6a3ce929d0e0e4736"
	callersSpan  = "00f067aa0ba902b7"
)

// A request and its calls to Redis are one trace, which continues the caller's trace. It has
// nothing of the request's content.
func TestRequestsAreTraced(t *testing.T) {
	collector := otlptest.Start(t)
	s := bare(t)
	s.RedisURL, s.OTLPEndpoint = redistest.Start(t).URL(), collector.URL()
	p := startWith(t, s, slog.New(slog.DiscardHandler))
	p.until("/readyz", 200)
	const document = "version: weir/v1\ntiers: [free, gold]\n" +
		"identity: {consumer: [{header: x-api-key}], tier: [assignment], default_tier: free}\n" +
		"policies:\n  - {name: a, partition: [], limit: {quota: 5, window: 1h}}\n"
	if a := p.do("PUT", "/v1/policyset", []byte(document), "If-Match", "*"); a.status != 200 {
		t.Fatalf("%d %s", a.status, a.body)
	}
	parent := []string{"Traceparent", fmt.Sprintf("00-%s-%s-01", callersTrace, callersSpan)}
	if a := p.do("PUT", "/v1/consumers/a-key-that-nobody-may-see", []byte(`{"tier":"gold"}`), append(parent, "If-Match", "*")...); a.status != 200 {
		t.Fatalf("%d %s", a.status, a.body)
	}
	answered(t, func(bucket keyhash.Key) bool {
		_, ok := p.grant(1, bucket, 1, parent...)
		return ok
	})
	if a := p.do("BREW", "/nowhere/a-path-that-nobody-knows", nil); a.status != 404 && a.status != 405 {
		t.Fatal(a.status)
	}
	p.stop() // The last spans are sent.
	spans := collector.Spans()
	byName := map[string]otlptest.Span{}
	for _, span := range spans {
		byName[span.Name] = span
		if span.Trace != callersTrace && span.Name == "redis evalsha" && span.Parent == "" {
			t.Errorf("a call in the background is traced: %+v", span)
		}
	}
	for _, name := range []string{"PUT /v1/consumers/:id", "POST /node/v1/leases"} {
		span := byName[name]
		if span.Trace != callersTrace || span.Parent != callersSpan ||
			span.Attributes["http.response.status_code"] != "200" {
			t.Errorf("%s: %+v", name, span)
		}
		children := 0
		for _, child := range spans {
			if child.Parent == span.ID && strings.HasPrefix(child.Name, "redis ") &&
				child.Attributes["db.system.name"] == "redis" {
				children++
			}
		}
		if children == 0 {
			t.Errorf("%s has no calls to Redis below it: %+v", name, spans)
		}
	}
	if span := byName["_OTHER none"]; span.Attributes["http.request.method"] != "_OTHER" {
		t.Errorf("a strange method: %+v", spans)
	}
	for _, unwanted := range []string{"a-key-that-nobody", "a-path-that-nobody", secret, "weir:{", "gold"} {
		if bytes.Contains(collector.Raw(), []byte(unwanted)) {
			t.Errorf("%q is in the sent spans", unwanted)
		}
	}
}

// A collector that is away costs spans and nothing else.
func TestWithoutACollectorAllGoesOn(t *testing.T) {
	s := bare(t)
	s.OTLPEndpoint = "http://127.0.0.1:9"
	var log logtest.Buffer
	p := startWith(t, s, slog.New(slog.NewTextHandler(&log, nil)))
	begun := time.Now()
	for range 100 {
		if a := p.do("GET", "/healthz", nil); a.status != 200 {
			t.Fatal(a.status)
		}
	}
	p.stop()
	if took := time.Since(begun); took > 20*time.Second {
		t.Errorf("it took %v", took)
	}
	if !strings.Contains(log.String(), "spans were lost") {
		t.Errorf("the log does not say so:\n%s", log.String())
	}
}
