package respond

import (
	"encoding/binary"

	"github.com/weir-proxy/weir/shared/dialect"
)

// ForWeb turns an answer to a gRPC caller into an answer to a browser that uses gRPC-Web: status
// and message are in a frame of the body, in Base64 if it is text. Envoy does this itself only if
// its filter grpc_web comes before Weir's filter.
func (r *Refusal) ForWeb(isText bool) {
	frame := append(r.frame[:0], "\x80\x00\x00\x00\x00grpc-status:"...)
	frame = dialect.AppendInt(frame, int64(r.GRPC))
	// The message is plain ASCII, so it needs no encoding.
	frame = append(append(append(frame, "\r\ngrpc-message:"...), r.Body...), "\r\n"...)
	binary.BigEndian.PutUint32(frame[1:], uint32(len(frame)-5))
	r.Status, r.GRPC, r.frame = 200, -1, frame
	if !isText {
		r.Headers.Add("content-type", "application/grpc-web+proto")
		r.Body = append(r.Body[:0], frame...)
		return
	}
	r.Headers.Add("content-type", "application/grpc-web-text+proto")
	r.Body = appendBase64(r.Body[:0], frame)
}

// appendBase64 appends bytes in Base64.
func appendBase64(dst, bytes []byte) []byte {
	const digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
	for i := 0; i < len(bytes); i += 3 {
		var group [3]byte
		n := copy(group[:], bytes[i:])
		bits := uint32(group[0])<<16 | uint32(group[1])<<8 | uint32(group[2])
		for at := range 4 {
			if at > n {
				dst = append(dst, '=')
				continue
			}
			dst = append(dst, digits[bits>>(18-6*at)&63])
		}
	}
	return dst
}
