package envoytest

import (
	"fmt"
	"slices"
)

// State is how far a stream has come.
type State int

const (
	Continued      State = iota // passed on: the upstream is to answer
	Paused                      // the filter holds the request
	ResponsePaused              // the filter holds the response
	Replied                     // the filter answered itself
	Responded                   // the client has the upstream's answer
	Failed                      // the client got a 503 because the filter's VM has trapped
	Cancelled                   // the client went away, or the filter closed the stream
)

var stateNames = [...]string{"Continued", "Paused", "ResponsePaused", "Replied", "Responded", "Failed", "Cancelled"}

// String returns the name of the state.
func (s State) String() string {
	if s < 0 || int(s) >= len(stateNames) {
		return fmt.Sprintf("State(%d)", int(s))
	}
	return stateNames[s]
}

// Stream is one request and its response.
type Stream struct {
	h       *Host
	thread  *thread
	handle  *handle      // nil if the filter is not in the chain
	context *wasmContext // nil if the filter is not in the chain

	source      string
	properties  map[string][]byte
	filterState map[string][]byte // by name
	request     message
	response    message
	grpc        bool

	state      State
	step       step
	running    side // whose callback runs
	resumed    bool // it has resumed its own side
	started    bool // response headers were made
	replying   bool // a local reply was sent, or will be as soon as the guest's call returns
	local      bool // the response is a local reply, with these:
	details    string
	grpcStatus int32
	logging    bool // proxy_on_log runs: it may read headers that are otherwise out of sight
	ended      bool
	reply      *Reply

	// The headers and bodies that the guest can see at the moment; nil is unavailable.
	visible     [mapCount]*headerMap
	visibleBody [bufferCount]*[]byte
}

type message struct {
	headers, trailers *headerMap
	body              []byte
}

// step is the last part of the request that the filter was given.
type step int

const (
	stepHeaders step = iota
	stepBody
	stepTrailers
)

// side is a direction of a stream.
type side int

const (
	noSide side = iota
	requestSide
	responseSide
)

// State returns how far the stream has come.
func (s *Stream) State() State {
	s.thread.mu.Lock()
	defer s.thread.mu.Unlock()
	return s.state
}

// ContextID returns the id that the guest knows the stream by; 0 if it does not.
func (s *Stream) ContextID() uint32 {
	if s.context == nil {
		return 0
	}
	return s.context.id
}

// RequestHeaders returns the request headers as the filter has left them for the upstream.
func (s *Stream) RequestHeaders() [][2]string {
	s.thread.mu.Lock()
	defer s.thread.mu.Unlock()
	return s.request.headers.clone()
}

// RequestBody returns the request body as the filter has left it.
func (s *Stream) RequestBody() []byte {
	s.thread.mu.Lock()
	defer s.thread.mu.Unlock()
	return slices.Clone(s.request.body)
}

// FilterState returns the filter state under name; the guest's property "x" is "wasm.x" here.
func (s *Stream) FilterState(name string) (value []byte, ok bool) {
	s.thread.mu.Lock()
	defer s.thread.mu.Unlock()
	value, ok = s.filterState[name]
	return slices.Clone(value), ok
}

// Cancel lets the client go away. It does nothing if the stream is over.
func (s *Stream) Cancel() {
	s.thread.mu.Lock()
	defer s.thread.mu.Unlock()
	s.cancel()
}

func (s *Stream) cancel() {
	if !s.over() {
		s.state = Cancelled
		s.end()
	}
}

// over reports whether the client has all that it will get.
func (s *Stream) over() bool {
	switch s.state {
	case Replied, Responded, Failed, Cancelled:
		return true
	}
	return false
}

// end runs the callbacks after the last byte: proxy_on_log, then proxy_on_done, then
// proxy_on_delete. A stream's proxy_on_done cannot delay the deletion.
func (s *Stream) end() {
	if s.ended {
		return
	}
	s.ended = true
	if s.handle == nil {
		return
	}
	c := s.context
	s.logging = true
	c.vm.call(onLog, c)
	c.vm.afterCall()
	s.logging = false
	c.done()
	c.delete()
	s.handle.streams--
	s.handle.release()
}

// fail gives the client the 503 of a trapped VM, past the filter.
func (s *Stream) fail() {
	if s.over() {
		return
	}
	r := localReply{status: 503, details: "wasm_fail_stream", grpcStatus: 14}
	s.response = r.message(s.grpc)
	s.local, s.details, s.grpcStatus = true, r.details, r.grpcStatus
	s.state = Failed
	s.deliver()
}
