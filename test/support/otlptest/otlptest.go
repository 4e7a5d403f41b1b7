// Package otlptest is a collector of traces for tests: OTLP over HTTP, on 127.0.0.1.
package otlptest

import (
	"compress/gzip"
	"encoding/hex"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"sync"
	"testing"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"google.golang.org/protobuf/proto"
)

// Collector keeps the spans that it gets.
type Collector struct {
	t      testing.TB
	server *httptest.Server

	mu    sync.Mutex
	raw   []byte
	spans []Span
}

// Span has the parts of a span that tests look at. Ids are hexadecimal; a root has no Parent.
type Span struct {
	Name, Trace, ID, Parent string
	Attributes              map[string]string
}

// Start runs a collector until the test ends.
func Start(t testing.TB) *Collector {
	t.Helper()
	c := &Collector{t: t}
	c.server = httptest.NewServer(http.HandlerFunc(c.take))
	t.Cleanup(c.server.Close)
	return c
}

// URL returns the address for control planes.
func (c *Collector) URL() string { return c.server.URL }

// Spans returns all received spans.
func (c *Collector) Spans() []Span {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.spans
}

// Raw returns the bytes of all received messages.
func (c *Collector) Raw() []byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.raw
}

func (c *Collector) take(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path != "/v1/traces" {
		c.t.Errorf("spans come to %s", r.URL.Path)
	}
	body := io.Reader(r.Body)
	if r.Header.Get("Content-Encoding") == "gzip" {
		var err error
		if body, err = gzip.NewReader(r.Body); err != nil {
			c.t.Errorf("a message for the collector: %v", err)
			return
		}
	}
	raw, err := io.ReadAll(body)
	var message collector.ExportTraceServiceRequest
	if err == nil {
		err = proto.Unmarshal(raw, &message)
	}
	if err != nil {
		c.t.Errorf("a message for the collector: %v", err)
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.raw = append(c.raw, raw...)
	for _, resource := range message.ResourceSpans {
		for _, scope := range resource.ScopeSpans {
			for _, s := range scope.Spans {
				span := Span{Name: s.Name, Trace: hex.EncodeToString(s.TraceId), ID: hex.EncodeToString(s.SpanId),
					Parent: hex.EncodeToString(s.ParentSpanId), Attributes: map[string]string{}}
				for _, a := range s.Attributes {
					text := a.Value.GetStringValue()
					if text == "" {
						text = strconv.FormatInt(a.Value.GetIntValue(), 10)
					}
					span.Attributes[a.Key] = text
				}
				c.spans = append(c.spans, span)
			}
		}
	}
	w.Header().Set("Content-Type", "application/x-protobuf")
}
