package envoytest

// Worker is a worker thread: it takes requests.
type Worker struct {
	thread *thread
}

// Request is a request as the filter sees it. Envoy's own work before the filter is not modelled:
// the test itself writes x-forwarded-for and a normalised :path.
type Request struct {
	Headers  [][2]string // names in any case; pseudo-headers first is not required
	Body     []byte      // in one chunk
	Trailers [][2]string
	// Source is the property source.address: "10.0.0.1:4242" or "[::1]:4242"; empty means
	// "127.0.0.1:40000".
	Source     string
	Properties map[string][]byte // properties of this stream, before Options.Properties; keys as made by Path
}

// Request sends a request through the filter, as far as the filter lets it.
func (w *Worker) Request(r Request) *Stream {
	t := w.thread
	t.mu.Lock()
	defer t.mu.Unlock()
	if r.Source == "" {
		r.Source = "127.0.0.1:40000"
	}
	s := &Stream{h: t.h, thread: t, properties: r.Properties, source: r.Source}
	s.request.headers = newHeaderMap(inlineRequestHeaders, r.Headers)
	s.request.body = r.Body
	if len(r.Trailers) > 0 {
		s.request.trailers = newHeaderMap(nil, r.Trailers)
	}
	s.grpc = isGRPC(s.request.headers)
	s.handle = t.handleForRequest()
	if s.handle == nil || s.handle.vm.failed {
		s.withoutVM()
		return s
	}
	s.handle.streams++
	s.context = s.handle.vm.newContext(s.handle.plugin, s.handle.root, s)
	s.context.create()
	s.decodeHeaders()
	return s
}

// withoutVM handles a request on a thread whose plugin is gone.
func (s *Stream) withoutVM() {
	s.handle = nil
	if s.h.opt.FailurePolicy == FailOpen {
		s.state = Continued
		return
	}
	s.fail()
}

// check runs before and after each callback. It reports whether the VM has trapped; the client then
// gets a 503, or the filter is skipped if it is to fail open.
func (s *Stream) check() (failed bool) {
	if !s.context.vm.failed {
		return false
	}
	if s.h.opt.FailurePolicy != FailOpen {
		s.fail()
	}
	return true
}

// enter runs a stream callback; it reports whether the filter lets the stream go on.
func (s *Stream) enter(cb callback, args ...uint64) bool {
	open := s.h.opt.FailurePolicy == FailOpen
	if s.check() {
		return open
	}
	v := s.context.vm
	result := uint32(v.call(cb, s.context, args...))
	stopped := v.stop
	if stopped && result == filterContinue && !s.replying {
		s.h.problem("context %d: Envoy does not go on with it: another one was answered in its callback", s.context.id)
	}
	failed := s.check()
	v.afterCall()
	switch {
	case failed:
		return open
	case stopped:
		return false
	case cb == onRequestHeaders || cb == onResponseHeaders:
		return result == filterContinue || result == filterHeadersIgnore
	}
	return result == filterContinue
}

// decode runs a request callback. If it returns false, the request stops here: it is paused, or
// over, or answered.
func (s *Stream) decode(cb callback, args ...uint64) bool {
	s.running = requestSide
	ok := s.enter(cb, args...) || s.resumed
	s.running, s.resumed = noSide, false
	if s.over() || s.replying {
		return false
	}
	if !ok {
		s.state = Paused
	}
	return ok
}

func (s *Stream) decodeHeaders() {
	s.visible[mapRequestHeaders] = s.request.headers
	end := len(s.request.body) == 0 && s.request.trailers == nil
	if s.decode(onRequestHeaders, uint64(s.request.headers.len()), flag(end)) {
		s.visible[mapRequestHeaders] = nil
		s.decodeBody()
	}
}

func (s *Stream) decodeBody() {
	s.step = stepBody
	if len(s.request.body) > 0 {
		s.visibleBody[bufferRequestBody] = &s.request.body
		if !s.decode(onRequestBody, uint64(len(s.request.body)), flag(s.request.trailers == nil)) {
			return
		}
		s.visibleBody[bufferRequestBody] = nil
	}
	s.decodeTrailers()
}

func (s *Stream) decodeTrailers() {
	s.step = stepTrailers
	if s.request.trailers != nil {
		s.visible[mapRequestTrailers] = s.request.trailers
		if !s.decode(onRequestTrailers, uint64(s.request.trailers.len())) {
			return
		}
		s.visible[mapRequestTrailers] = nil
	}
	s.state = Continued
}

// resumeRequest goes on with a paused request from where it stopped. The guest's view of the
// request ends at once, the rest happens when the guest's call returns.
func (s *Stream) resumeRequest() {
	s.visible[mapRequestHeaders], s.visible[mapRequestTrailers] = nil, nil
	s.visibleBody[bufferRequestBody] = nil
	if s.running == requestSide {
		s.h.problem("context %d: the request was resumed inside its own callback", s.context.id)
		s.resumed = true
		return
	}
	s.context.vm.postpone(func() {
		if s.over() || s.replying {
			return
		}
		if s.state != Paused {
			s.h.problem("context %d: a request that is not paused was resumed", s.context.id)
			return
		}
		switch s.step {
		case stepHeaders:
			s.decodeBody()
		case stepBody:
			s.decodeTrailers()
		default:
			s.state = Continued
		}
	})
}

func flag(b bool) uint64 {
	if b {
		return 1
	}
	return 0
}
