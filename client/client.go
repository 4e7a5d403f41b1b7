// Package client is for programs that call an API with limits. Its Transport reads the RateLimit
// fields of the answers, and waits before a request that the API would refuse. If the API refuses a
// request all the same, the Transport repeats it if that is safe. The fields may come from Weir or
// from any other server.
//
//	http.Client{Transport: client.New(nil, client.Options{})}
//
// The package imports only the standard library. Package grpcpacer does the same for gRPC. The
// folders python and typescript have the same client in these languages.
package client

import (
	"errors"
	"io"
	"math/rand/v2"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Transport is an http.RoundTripper that waits until a request may be sent. Several goroutines may
// use it.
type Transport struct {
	base    http.RoundTripper
	options Options
	random  func() float64

	mu     sync.Mutex
	pacers map[string]*Pacer
}

// New returns a Transport that sends requests through base; nil is http.DefaultTransport.
func New(base http.RoundTripper, o Options) *Transport {
	if base == nil {
		base = http.DefaultTransport
	}
	return &Transport{
		base: base, options: o.withDefaults(), random: rand.Float64, pacers: map[string]*Pacer{},
	}
}

const (
	// maxPacers is the largest number of keys that a Transport remembers.
	maxPacers = 256
	// maxDrain is the number of bytes of a refusal's body that are read, so that its connection can
	// be used again.
	maxDrain = 64 << 10
)

// RoundTrip implements http.RoundTripper. If the repeats are refused too, it returns the server's
// last refusal. If an earlier refusal still holds for longer than the request may wait, RoundTrip
// does not send the request: it returns a 429 of its own, with Retry-After and without a body.
func (t *Transport) RoundTrip(r *http.Request) (*http.Response, error) {
	call := t.pacerOf(t.options.Key(r)).Begin(t.options.Route(r), Repeatable(r))
	for again := false; ; again = true {
		if err := call.Wait(r.Context()); err != nil {
			closeBody(r, again)
			if held := (*HeldError)(nil); errors.As(err, &held) {
				return newRefusal(r, held), nil
			}
			return nil, err
		}
		attempt := r
		if again {
			var err error
			if attempt, err = cloneRequest(r); err != nil {
				call.Failed()
				return nil, err
			}
		}
		answer, err := t.base.RoundTrip(attempt)
		if err != nil {
			call.Failed()
			return nil, err
		}
		if !call.Answered(r.Context(), answer.StatusCode, answer.Header) {
			return answer, nil
		}
		// The answer is a refusal, and the request is repeated.
		_, _ = io.CopyN(io.Discard, answer.Body, maxDrain)
		answer.Body.Close()
	}
}

// CloseIdleConnections closes the idle connections of the Transport's base.
func (t *Transport) CloseIdleConnections() {
	if base, ok := t.base.(interface{ CloseIdleConnections() }); ok {
		base.CloseIdleConnections()
	}
}

// pacerOf returns the Pacer of a key. If maxPacers keys are known, it first forgets them all.
func (t *Transport) pacerOf(key string) *Pacer {
	t.mu.Lock()
	defer t.mu.Unlock()
	p := t.pacers[key]
	if p != nil {
		return p
	}
	if len(t.pacers) >= maxPacers {
		clear(t.pacers)
	}
	p = newPacer(t.options, t.random)
	t.pacers[key] = p
	return p
}

// idempotent has the methods that a server may see twice.
var idempotent = map[string]bool{
	"": true, "GET": true, "HEAD": true, "OPTIONS": true, "TRACE": true, "PUT": true, "DELETE": true,
}

// Repeatable reports whether a request may be sent twice: its method is idempotent or it has an
// Idempotency-Key, and its body can be read again or is missing.
func Repeatable(r *http.Request) bool {
	readable := r.Body == nil || r.Body == http.NoBody || r.GetBody != nil
	return readable && (idempotent[r.Method] || r.Header.Get("Idempotency-Key") != "")
}

// cloneRequest returns a copy of a request with an unread body.
func cloneRequest(r *http.Request) (*http.Request, error) {
	clone := r.Clone(r.Context())
	if r.GetBody == nil {
		return clone, nil
	}
	body, err := r.GetBody()
	clone.Body = body
	return clone, err
}

// closeBody closes the body of a request that was never sent: a RoundTripper must do so.
func closeBody(r *http.Request, sent bool) {
	if r.Body != nil && !sent {
		r.Body.Close()
	}
}

// newRefusal returns the answer to a request that is not sent.
func newRefusal(r *http.Request, held *HeldError) *http.Response {
	seconds := (held.Wait + time.Second - 1) / time.Second
	return &http.Response{
		Status: "429 Too Many Requests", StatusCode: http.StatusTooManyRequests,
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: http.Header{"Retry-After": {strconv.Itoa(int(seconds))}},
		Body:   http.NoBody, Request: r,
	}
}

var (
	version    = regexp.MustCompile(`^v\d+$`)
	identifier = regexp.MustCompile(`\d|^.{33,}$`)
)

// routeOf returns the method and the path of a request. A star replaces each part of the path that
// looks like an identifier: a part with a digit or with over 32 characters.
func routeOf(r *http.Request) string {
	parts := strings.Split(r.URL.Path, "/")
	for i, part := range parts {
		if identifier.MatchString(part) && !version.MatchString(part) {
			parts[i] = "*"
		}
	}
	return r.Method + " " + strings.Join(parts, "/")
}
