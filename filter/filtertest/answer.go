package filtertest

import (
	"github.com/weir-proxy/weir/filter/internal/answer/respond"
	"github.com/weir-proxy/weir/filter/internal/decide/limiter"
)

// Answer is a decision as its client sees it.
type Answer struct {
	Status  uint32
	Headers map[string]string
	Body    []byte
	// Log is the decision in the form for access logs.
	Log string
}

// String returns the important parts in one line.
func (a Answer) String() string { return a.Headers["ratelimit"] + " " + a.Log + " " + string(a.Body) }

// answerOf returns the client's answer.
func (w *worker) answerOf(req *limiter.Request, status limiter.Status) Answer {
	now, a := w.Now(), Answer{Status: 200, Headers: map[string]string{}}
	wall, h := int64(now)+int64(w.limiter.Ahead), &w.headers
	switch status {
	case limiter.Allowed, limiter.Delayed:
		h.Reset()
		h.Limits(req, false, 0, wall+int64(req.Delay))
	case limiter.Refused:
		w.refusal.Write(req, now, wall, false)
		a.Status, h = w.refusal.Status, &w.refusal.Headers
		a.Body = append(a.Body, w.refusal.Body...)
	default:
		return a
	}
	a.Log = string(respond.AppendDecision(nil, req, status))
	for i := range h.Len() {
		name, value := h.At(i)
		a.Headers[name] = string(value)
	}
	return a
}

// head is the head of a response, by the names of its headers.
type head map[string][]string

// Header implements limiter.Answer.
func (h head) Header(name string) []byte {
	if len(h[name]) == 0 {
		return nil
	}
	return []byte(h[name][0])
}

// Once implements limiter.Answer.
func (h head) Once(name string) []byte {
	if len(h[name]) != 1 {
		return nil
	}
	return []byte(h[name][0])
}

// Respond ends the stream of a request that went on, with a response: a status, and pairs of a name
// and a value.
func (p *Process) Respond(number int, stream uint32, status string, headers ...string) {
	h := head{":status": {status}}
	for i := 0; i < len(headers); i += 2 {
		h[headers[i]] = append(h[headers[i]], headers[i+1])
	}
	p.finish(number, stream, h)
}
