package stack

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"time"
)

// Upstream is a small service behind the proxy, inside this process.
type Upstream struct {
	// Port is where it listens, on 127.0.0.1.
	Port int

	server   *http.Server
	requests atomic.Int64
}

// StartUpstream serves handler, or Echo if that is nil, on a port that the kernel chooses.
func StartUpstream(handler http.Handler) (*Upstream, error) {
	if handler == nil {
		handler = http.HandlerFunc(Echo)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("the upstream cannot listen: %w", err)
	}
	u := &Upstream{Port: l.Addr().(*net.TCPAddr).Port}
	var protocols http.Protocols
	protocols.SetHTTP1(true)
	protocols.SetUnencryptedHTTP2(true)
	u.server = &http.Server{
		Protocols: &protocols,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			u.requests.Add(1)
			handler.ServeHTTP(w, r)
		}),
		// Also of a connection that Envoy keeps and has not used yet. If it closed as a request
		// comes, Envoy would answer 503. No client here is slow.
		ReadHeaderTimeout: time.Hour,
	}
	go u.server.Serve(l)
	return u, nil
}

// Requests returns the number of requests that have arrived.
func (u *Upstream) Requests() int64 { return u.requests.Load() }

// Stop ends the upstream. Requests in flight have a second.
func (u *Upstream) Stop() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if u.server.Shutdown(ctx) != nil {
		u.server.Close()
	}
}

// Echoed is an answer of Echo.
type Echoed struct {
	Method  string      `json:"method"`
	Path    string      `json:"path"`
	Headers http.Header `json:"headers"`
}

// Echo answers 200 with the request, to show how it has passed the proxy. A header X-Echo-NAME of
// the request is the header NAME of the answer.
func Echo(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	for name, values := range r.Header {
		if own, echoed := strings.CutPrefix(name, "X-Echo-"); echoed {
			w.Header()[own] = values
		}
	}
	json.NewEncoder(w).Encode(Echoed{Method: r.Method, Path: r.URL.Path, Headers: r.Header})
}
