package envoytest

import (
	"bytes"
	"slices"
	"strconv"
	"strings"
)

// Reply is the client's answer.
type Reply struct {
	Status     int         // of HTTP: a refused gRPC request has 200 here
	Headers    [][2]string // :status included
	Body       []byte
	Trailers   [][2]string
	Local      bool   // made by the filter or, if the stream has failed, by the host
	Details    string // response code details of a local reply
	GRPCStatus int32  // that the filter passed with its local reply; -1 is none
}

// Header returns the first value of a header, "" if there is none; name is in lower case.
func (r *Reply) Header(name string) string {
	for _, p := range r.Headers {
		if p[0] == name {
			return p[1]
		}
	}
	return ""
}

// Response is an upstream's answer.
type Response struct {
	Status   int         // 0 means 200
	Headers  [][2]string // without :status
	Body     []byte      // in one chunk
	Trailers [][2]string
}

// Reply returns the client's answer, and nil before there is an answer.
func (s *Stream) Reply() *Reply {
	s.thread.mu.Lock()
	defer s.thread.mu.Unlock()
	return s.reply
}

// Respond lets the upstream answer a request that was passed on. It returns the client's answer, or
// nil if the filter holds the response or closes the stream.
func (s *Stream) Respond(status int, headers [][2]string) *Reply {
	return s.RespondWith(Response{Status: status, Headers: headers})
}

// RespondWith does the same as Respond, with a body and trailers.
func (s *Stream) RespondWith(r Response) *Reply {
	s.thread.mu.Lock()
	defer s.thread.mu.Unlock()
	if s.state != Continued {
		s.h.problem("the upstream cannot answer a request that is %v", s.state)
		return nil
	}
	if r.Status == 0 {
		r.Status = 200
	}
	m := message{headers: newHeaderMap(inlineResponseHeaders, [][2]string{{":status", strconv.Itoa(r.Status)}}),
		body: r.Body}
	for _, p := range r.Headers {
		m.headers.add(p[0], p[1])
	}
	if len(r.Trailers) > 0 {
		m.trailers = newHeaderMap(nil, r.Trailers)
	}
	s.encodeHeaders(m)
	return s.reply
}

// encode runs a response callback. If it returns false, the response stops here: it is held, or the
// stream is over.
func (s *Stream) encode(cb callback, args ...uint64) bool {
	s.running = responseSide
	ok := s.enter(cb, args...) || s.resumed
	s.running, s.resumed = noSide, false
	if s.over() {
		return false
	}
	if !ok {
		s.state = ResponsePaused
	}
	return ok
}

// encodeHeaders takes a response, the upstream's or a local response, through the filter to the
// client.
func (s *Stream) encodeHeaders(m message) {
	s.response, s.started, s.step = m, true, stepHeaders
	if s.handle == nil {
		s.finish()
		return
	}
	s.visible[mapResponseHeaders] = m.headers
	end := len(m.body) == 0 && m.trailers == nil
	if s.encode(onResponseHeaders, uint64(m.headers.len()), flag(end)) {
		s.visible[mapResponseHeaders] = nil
		s.encodeBody()
	}
}

func (s *Stream) encodeBody() {
	s.step = stepBody
	if len(s.response.body) > 0 {
		s.visibleBody[bufferResponseBody] = &s.response.body
		if !s.encode(onResponseBody, uint64(len(s.response.body)), flag(s.response.trailers == nil)) {
			return
		}
		s.visibleBody[bufferResponseBody] = nil
	}
	s.encodeTrailers()
}

func (s *Stream) encodeTrailers() {
	s.step = stepTrailers
	if s.response.trailers != nil {
		s.visible[mapResponseTrailers] = s.response.trailers
		if !s.encode(onResponseTrailers, uint64(s.response.trailers.len())) {
			return
		}
		s.visible[mapResponseTrailers] = nil
	}
	s.finish()
}

// resumeResponse goes on with a held response. As in Envoy, the guest then no longer sees the
// request, but still sees the response.
func (s *Stream) resumeResponse() {
	s.visible[mapRequestHeaders], s.visible[mapRequestTrailers] = nil, nil
	s.visibleBody[bufferRequestBody] = nil
	if s.running == responseSide {
		s.h.problem("context %d: the response was resumed inside its own callback", s.context.id)
		s.resumed = true
		return
	}
	s.context.vm.postpone(func() {
		if s.over() {
			return
		}
		if s.state != ResponsePaused {
			s.h.problem("context %d: a response that is not paused was resumed", s.context.id)
			return
		}
		switch s.step {
		case stepHeaders:
			s.encodeBody()
		case stepBody:
			s.encodeTrailers()
		default:
			s.finish()
		}
	})
}

// finish gives the response to the client.
func (s *Stream) finish() {
	s.state = Responded
	if s.local {
		s.state = Replied
	}
	s.deliver()
}

func (s *Stream) deliver() {
	status, _ := s.response.headers.first(":status")
	code, _ := strconv.Atoi(status) // a guest may have written anything there: then 0
	s.reply = &Reply{
		Status: code, Headers: s.response.headers.clone(), Body: slices.Clone(s.response.body),
		Trailers: s.response.trailers.clone(), Local: s.local, Details: s.details, GRPCStatus: s.grpcStatus,
	}
	s.end()
}

// localReply is a response made in the proxy.
type localReply struct {
	status     int
	headers    [][2]string
	body       []byte
	details    string
	grpcStatus int32
}

// send answers a request, when the guest's call has returned. Before a response has begun the reply
// takes the way of a response, through the filter's response callbacks; after that, and before its
// headers are out, it goes to the client directly.
func (s *Stream) send(r localReply) {
	c := s.context
	if s.replying {
		s.h.problem("context %d: a second local reply was sent on one stream", c.id)
	}
	s.replying = true
	c.vm.postpone(func() {
		if s.over() {
			return
		}
		s.local, s.details, s.grpcStatus = true, r.details, r.grpcStatus
		switch {
		case !s.started:
			s.encodeHeaders(r.message(s.grpc))
		case s.step == stepHeaders:
			s.response = r.message(s.grpc)
			s.finish()
		default:
			s.cancel()
		}
	})
}

// message builds the response as Envoy does: additional headers are appended, a body brings its
// length and unless there is one a type, and a gRPC request gets its status in headers of an HTTP
// 200.
func (r localReply) message(grpc bool) message {
	m := message{headers: newHeaderMap(inlineResponseHeaders, [][2]string{{":status", strconv.Itoa(r.status)}})}
	for _, p := range r.headers {
		m.headers.add(p[0], p[1])
	}
	if grpc {
		m.headers.replace(":status", "200")
		m.headers.replace("content-type", "application/grpc")
		if _, ok := m.headers.first("grpc-status"); !ok {
			code := r.grpcStatus
			if code < 0 {
				code = grpcStatusOf(r.status)
			}
			m.headers.add("grpc-status", strconv.Itoa(int(code)))
		}
		if len(r.body) > 0 {
			m.headers.replace("grpc-message", percentEncode(r.body))
		}
		return m
	}
	m.headers.remove("content-length")
	if len(r.body) == 0 {
		m.headers.remove("content-type")
	} else {
		m.body = bytes.Clone(r.body)
		m.headers.add("content-length", strconv.Itoa(len(r.body)))
		if _, ok := m.headers.first("content-type"); !ok {
			m.headers.add("content-type", "text/plain")
		}
	}
	return m
}

func isGRPC(headers *headerMap) bool {
	contentType, _ := headers.first("content-type")
	return contentType == "application/grpc" || strings.HasPrefix(contentType, "application/grpc+")
}

// grpcStatusOf maps an HTTP status as gRPC's own table does.
func grpcStatusOf(status int) int32 {
	switch status {
	case 400:
		return 13
	case 401:
		return 16
	case 403:
		return 7
	case 404:
		return 12
	case 429, 502, 503, 504:
		return 14
	}
	return 2
}

// percentEncode escapes the characters that a grpc-message may not hold.
func percentEncode(text []byte) string {
	const hex = "0123456789ABCDEF"
	var b strings.Builder
	for _, c := range text {
		if c < ' ' || c > '~' || c == '%' {
			b.WriteByte('%')
			b.WriteByte(hex[c>>4])
			b.WriteByte(hex[c&15])
			continue
		}
		b.WriteByte(c)
	}
	return b.String()
}
