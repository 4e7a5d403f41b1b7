package envoytest

import (
	"bytes"
	"slices"
	"strings"
)

func (v *vm) abiSendLocalResponse(a []uint64) status {
	details, ok1 := v.bytes(a[1], a[2])
	body, ok2 := v.bytes(a[3], a[4])
	headers, ok3 := v.bytes(a[5], a[6])
	if !ok1 || !ok2 || !ok3 {
		return statusInvalidMemoryAccess
	}
	c := v.context()
	if c.stream != nil {
		c.stream.send(localReply{
			status: int(uint32(a[0])), headers: decodePairs(headers), body: bytes.Clone(body),
			details: strings.Map(underscore, string(details)), grpcStatus: knownGRPC(a[7]),
		})
	}
	v.stop = true
	return statusOK
}

func underscore(r rune) rune {
	if strings.ContainsRune(" \t\n\v\f\r", r) {
		return '_'
	}
	return r
}

// knownGRPC returns a status that gRPC knows, and -1 for any other number.
func knownGRPC(code uint64) int32 {
	if uint32(code) > 16 {
		return -1
	}
	return int32(code)
}

// abiContinueStream asks to go on when the guest's call returns.
func (v *vm) abiContinueStream(a []uint64) status {
	s := v.context().stream
	switch a[0] {
	case streamRequest:
		if s != nil {
			s.resumeRequest()
		}
	case streamResponse:
		if s != nil {
			s.resumeResponse()
		}
	case streamDownstream:
	case streamUpstream:
		return statusUnimplemented
	default:
		return statusBadArgument
	}
	return statusOK
}

// abiCloseStream asks to reset the stream when the guest's call returns.
func (v *vm) abiCloseStream(a []uint64) status {
	if a[0] >= streamCount {
		return statusBadArgument
	}
	if s := v.context().stream; s != nil && a[0] <= streamResponse {
		v.postpone(s.cancel)
	}
	return statusOK
}

// abiSetEffectiveContext lets the host calls that follow act on another context. If that context is
// gone, the context before stays in force: a guest that ignores the status then acts on the wrong
// stream.
func (v *vm) abiSetEffectiveContext(a []uint64) status {
	id := uint32(a[0])
	if v.contexts[id] == nil {
		return statusBadArgument
	}
	v.effective = id
	return statusOK
}

func (v *vm) abiDone([]uint64) status { return v.finishShutdown(v.context().root) }

// buffer returns the buffer of a kind that context c sees now; it is nil if there is none. The
// second result is where to write changes, nil for a buffer that cannot be changed.
func (c *wasmContext) buffer(kind uint64) (content []byte, body *[]byte, ok bool) {
	switch kind {
	case bufferRequestBody, bufferResponseBody:
		if c.stream != nil && c.stream.visibleBody[kind] != nil {
			return *c.stream.visibleBody[kind], c.stream.visibleBody[kind], true
		}
		return nil, nil, true // no body is there to see: an empty buffer
	case bufferCallResponseBody:
		if c.root.response == nil {
			return nil, nil, false
		}
		return c.root.response.body, nil, true
	case bufferVMConfiguration:
		return c.vm.h.opt.VMConfig, nil, true
	case bufferPluginConfiguration:
		if !c.configuring {
			return nil, nil, false
		}
		return c.plugin.config, nil, true
	}
	return nil, nil, true // of a protocol that is not modelled, and as empty as in Envoy without it
}

func (v *vm) abiGetBuffer(a []uint64) status {
	if a[0] >= bufferCount {
		return statusBadArgument
	}
	content, _, ok := v.context().buffer(a[0])
	if !ok {
		return statusNotFound
	}
	size := uint64(len(content))
	start, length := uint64(uint32(a[1])), uint64(uint32(a[2]))
	start = min(start, size)
	return v.give(content[start:min(start+length, size)], a[3], a[4])
}

func (v *vm) abiGetBufferStatus(a []uint64) status {
	if a[0] >= bufferCount {
		return statusBadArgument
	}
	content, _, ok := v.context().buffer(a[0])
	if !ok {
		return statusNotFound
	}
	if st := v.put32(a[1], uint32(len(content))); st != statusOK {
		return st
	}
	return v.put32(a[2], 0)
}

// abiSetBuffer changes a body: start 0 with length 0 puts data before it, with its whole length (or
// more) replaces it, and a start at its end or later appends. Nothing else is possible.
func (v *vm) abiSetBuffer(a []uint64) status {
	if a[0] >= bufferCount {
		return statusBadArgument
	}
	content, body, ok := v.context().buffer(a[0])
	if !ok {
		return statusNotFound
	}
	data, ok := v.bytes(a[3], a[4])
	if !ok {
		return statusInvalidMemoryAccess
	}
	size := uint64(len(content))
	start, length := uint64(uint32(a[1])), uint64(uint32(a[2]))
	switch {
	case body == nil:
		return statusBadArgument
	case start == 0 && length == 0:
		*body = slices.Concat(data, content)
	case start == 0 && length >= size:
		*body = bytes.Clone(data)
	case start > 0 && start >= size:
		*body = slices.Concat(content, data)
	default:
		return statusBadArgument
	}
	return statusOK
}
