package api_test

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/wire"
)

// One operation is a node's lease call about one bucket, without the connection: the control
// plane's own work with the embedded store.
func BenchmarkLeaseCall(b *testing.B) {
	p := newPlane(b)
	const plenty = "version: weir/v1\npolicies:\n  - {name: a, partition: [], limit: {quota: 1000000, window: 366d}}\n"
	if w := p.put(`"0"`, plenty); w.Code != http.StatusOK {
		b.Fatal(w.Code, w.Body)
	}
	body := wire.AppendLeaseRequest(nil, wire.LeaseRequest{
		Node: "envoy-1", Boot: 1, Seq: 1, Version: 1,
		Items: []wire.LeaseItem{{Bucket: keyhash.Key{1}, Waiting: 1, Cost: 1, Keep: 1}},
	})
	r := httptest.NewRequest(http.MethodPost, "/node/v1/leases", nil)
	r.Header.Set("Authorization", "Bearer token of envoy")
	b.ReportAllocs()
	for b.Loop() {
		r.Body = io.NopCloser(bytes.NewReader(body))
		w := &sink{header: http.Header{}}
		if p.handler.ServeHTTP(w, r); w.status != http.StatusOK || w.size == 0 {
			b.Fatal(w.status)
		}
	}
}

// sink takes an answer and keeps nothing of it.
type sink struct {
	header       http.Header
	status, size int
}

// Header implements http.ResponseWriter.
func (s *sink) Header() http.Header { return s.header }

// WriteHeader implements http.ResponseWriter.
func (s *sink) WriteHeader(status int) { s.status = status }

// Write implements http.ResponseWriter.
func (s *sink) Write(b []byte) (int, error) {
	s.size += len(b)
	return len(b), nil
}
