// Package respond passes decisions to shared/answer, which writes the answers for clients: headers
// on the upstream's answer, or the refusal itself.
package respond

import (
	"encoding/binary"

	"github.com/weir-proxy/weir/filter/internal/decide/limiter"
	"github.com/weir-proxy/weir/shared/answer"
	"github.com/weir-proxy/weir/shared/dialect"
)

// Headers are response headers. The zero value is empty.
type Headers struct{ answer.Headers }

// Limits writes a decision in the dialects of the policy set: every policy that applied and whose
// state is known. For a refused request it writes the wait of retryAfter seconds, 0 if waiting does
// not help. Wall is the Unix time in microseconds.
func (h *Headers) Limits(req *limiter.Request, refused bool, retryAfter, wall int64) {
	h.Items = h.Items[:0]
	refusing := -1
	for i := range req.Hits {
		hit := &req.Hits[i]
		if !hit.Known { // Its bucket is not known yet.
			continue
		}
		if refused && i == req.Refusing {
			refusing = len(h.Items)
		}
		limit := req.LimitOf(&hit.Hit)
		h.Items = append(h.Items, dialect.Item{
			Name: nameOf(req, i), Burst: limit.Params.Burst, Window: limit.Refill(), Remaining: hit.Remaining,
			Reset: hit.Reset, InFlight: limit.InFlight, Cost: hit.Cost, Policy: hit.Policy, Bucket: hit.Key,
		})
	}
	h.Headers.Limits(&req.Rules().Index, refused, refusing, retryAfter, wall)
}

// nameOf returns the name of the limit of the ith hit.
func nameOf(req *limiter.Request, i int) []byte {
	hit := &req.Hits[i]
	several := i > 0 && req.Hits[i-1].Policy == hit.Policy ||
		i+1 < len(req.Hits) && req.Hits[i+1].Policy == hit.Policy
	return answer.NameOf(&req.Rules().Index, &hit.Hit, req.LimitOf(&hit.Hit), several)
}

// AppendPairs appends all headers in the encoding of the proxy-wasm ABI.
func (h *Headers) AppendPairs(dst []byte) []byte {
	dst = binary.LittleEndian.AppendUint32(dst, uint32(h.Len()))
	for i := range h.Len() {
		name, value := h.At(i)
		dst = binary.LittleEndian.AppendUint32(dst, uint32(len(name)))
		dst = binary.LittleEndian.AppendUint32(dst, uint32(len(value)))
	}
	for i := range h.Len() {
		name, value := h.At(i)
		dst = append(append(dst, name...), 0)
		dst = append(append(dst, value...), 0)
	}
	return dst
}
