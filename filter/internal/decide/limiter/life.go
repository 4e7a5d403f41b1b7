package limiter

import (
	"encoding/binary"

	"github.com/weir-proxy/weir/shared/match"
	"github.com/weir-proxy/weir/shared/quota"
)

// Life is the course of a Lasting request.
type Life struct {
	// Sent is when the request went on towards its upstream. Answered is when the headers of a
	// response came, from the upstream or from another filter. Both are 0 if that did not happen.
	// Ended is when the stream was over, in any way.
	Sent, Answered, Ended quota.Instant
	// Properties are Envoy's attributes at the end of the stream.
	Properties match.Properties
}

// An Ending is the reason why a reservation stays charged: the request ended without a whole
// response of its upstream.
type Ending uint8

const (
	// ClientGone: the client closed its connection, reset its stream, or broke the protocol.
	ClientGone Ending = iota
	// TimedOut: a time-out of Envoy's ended the request.
	TimedOut
	// UpstreamFailed: the upstream was not reached, or it broke off.
	UpstreamFailed
	// EndedOtherwise: another filter or Envoy itself answered in the upstream's place, or Envoy's
	// flag is not listed below, or the bucket could not be changed.
	EndedOtherwise

	// Endings is the number of endings.
	Endings
)

// flagsPath is Envoy's attribute with the reasons why a request failed: bits in an integer of eight
// bytes, the lowest byte first.
const flagsPath = "response\x00flags"

// endingFlags are Envoy's bits for each ending, from its include file stream_info.h. The first
// ending with a matching bit counts, because when a client goes, Envoy itself resets the upstream.
var endingFlags = [...]struct {
	ending Ending
	bits   uint64
}{
	{ClientGone, 0x4000 | // DC: the connection was closed.
		0x40000 | // DPE: the client broke the protocol.
		0x10000000}, // DR: the stream was reset.
	{TimedOut, 0x4 | // UT: the route's time-out.
		0x10000 | // SI: a stream without anything in it.
		0x80000 | // UMSDR: the longest time of a stream to the upstream.
		0x400000}, // DT: the longest time of a request.
	{UpstreamFailed, 0x2 | // UH: no healthy host.
		0x8 | // LR: reset by this side.
		0x10 | // UR: reset by the upstream.
		0x20 | // UF: no connection.
		0x40 | // UC: the connection was closed.
		0x80 | // UO: too many requests under way.
		0x8000 | // URX: retried too often.
		0x800000}, // UPE: the upstream broke the protocol.
}

// ending returns the reason why the request has no whole response.
func (life *Life) ending() Ending {
	if life.Properties == nil {
		return EndedOtherwise
	}
	value := life.Properties.Property([]byte(flagsPath))
	if len(value) != 8 {
		return EndedOtherwise
	}
	flags := binary.LittleEndian.Uint64(value)
	for _, e := range endingFlags {
		if flags&e.bits != 0 {
			return e.ending
		}
	}
	return EndedOtherwise
}
