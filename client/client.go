// Package client is for programs that call an API with limits. Its Transport waits where the API
// would refuse, paces requests by the RateLimit fields of the answers, and repeats what was refused
// if that is safe. Any server that sends these fields will do, Weir or another.
//
//	http.Client{Transport: client.New(nil, client.Options{})}
//
// It imports nothing but the standard library. Package grpcpacer does the same for gRPC, and the
// folders python and typescript have twins.
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

// Transport is an http.RoundTripper that waits for its turn. It may be used by several goroutines.
type Transport struct {
	base    http.RoundTripper
	options Options
	random  func() float64

	mu     sync.Mutex
	pacers map[string]*Pacer
}

// New makes a Transport that sends by base; nil is http.DefaultTransport.
func New(base http.RoundTripper, o Options) *Transport {
	if base == nil {
		base = http.DefaultTransport
	}
	return &Transport{
		base: base, options: o.withDefaults(), random: rand.Float64, pacers: map[string]*Pacer{},
	}
}

const (
	// maxPacers bounds how many keys a Transport remembers.
	maxPacers = 256
	// maxDrain is how much of a refusal's body is read so that its connection can be used again.
	maxDrain = 64 << 10
)

// RoundTrip implements http.RoundTripper. A request that waited in vain comes back with the
// server's last refusal. One that the server has refused for longer than it may wait is not sent:
// its answer is a 429 of the Transport's own, with Retry-After and without a body.
func (t *Transport) RoundTrip(r *http.Request) (*http.Response, error) {
	call := t.pacer(t.options.Key(r)).Begin(t.options.Route(r), Repeatable(r))
	for again := false; ; again = true {
		if err := call.Wait(r.Context()); err != nil {
			closeBody(r, again)
			if held := (*HeldError)(nil); errors.As(err, &held) {
				return refuse(r, held), nil
			}
			return nil, err
		}
		attempt := r
		if again {
			var err error
			if attempt, err = repeat(r); err != nil {
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
		_, _ = io.CopyN(io.Discard, answer.Body, maxDrain)
		answer.Body.Close()
	}
}

// CloseIdleConnections closes those of the Transport below.
func (t *Transport) CloseIdleConnections() {
	if below, ok := t.base.(interface{ CloseIdleConnections() }); ok {
		below.CloseIdleConnections()
	}
}

func (t *Transport) pacer(key string) *Pacer {
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

// idempotent are the methods that a server may see twice.
var idempotent = map[string]bool{
	"": true, "GET": true, "HEAD": true, "OPTIONS": true, "TRACE": true, "PUT": true, "DELETE": true,
}

// Repeatable reports whether a request may be sent twice: its method is idempotent or it has an
// Idempotency-Key, and its body, if any, can be had again.
func Repeatable(r *http.Request) bool {
	again := r.Body == nil || r.Body == http.NoBody || r.GetBody != nil
	return again && (idempotent[r.Method] || r.Header.Get("Idempotency-Key") != "")
}

// repeat is a request with a new body.
func repeat(r *http.Request) (*http.Request, error) {
	again := r.Clone(r.Context())
	if r.GetBody == nil {
		return again, nil
	}
	body, err := r.GetBody()
	again.Body = body
	return again, err
}

// closeBody closes the body of a request that was not sent, as a RoundTripper must.
func closeBody(r *http.Request, sent bool) {
	if r.Body != nil && !sent {
		r.Body.Close()
	}
}

// refuse is the answer to a request that is not sent.
func refuse(r *http.Request, held *HeldError) *http.Response {
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

// routeOf is the method and the path of a request, with a star for what looks like an identifier:
// a part with a digit in it, or a long one.
func routeOf(r *http.Request) string {
	parts := strings.Split(r.URL.Path, "/")
	for i, part := range parts {
		if identifier.MatchString(part) && !version.MatchString(part) {
			parts[i] = "*"
		}
	}
	return r.Method + " " + strings.Join(parts, "/")
}
