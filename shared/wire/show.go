package wire

import (
	"encoding/binary"

	"github.com/weir-proxy/weir/shared/policy"
)

// putShow appends the parts that may be shown, and their length, so that they can be cut off again.
func putShow(dst []byte, parts []policy.Part) []byte {
	start := len(dst)
	dst = putUvarint(dst, int64(len(parts)))
	for _, p := range parts {
		dst = putText(append(dst, byte(p.Kind)), p.Name)
	}
	return binary.LittleEndian.AppendUint32(dst, uint32(len(dst)-start))
}

// Plain is the snapshot without the list of shown parts, for filters that do not read it. Other
// snapshots stay as they are; b does not change.
func Plain(b []byte) []byte {
	if len(b) < snapshotHeader+showTail || b[len(snapshotMagic)] != showFormat {
		return b
	}
	size := int(binary.LittleEndian.Uint32(b[len(b)-showTail:]))
	if size > len(b)-snapshotHeader-showTail {
		return b
	}
	b = append([]byte(nil), b[:len(b)-showTail-size]...)
	b[len(snapshotMagic)] = snapshotFormat
	binary.LittleEndian.PutUint64(b[snapshotHeader-8:], checksum(b[snapshotHeader:])^PeekVersion(b))
	return b
}

// Shown is how many parts of a request may be shown. It must follow the last policy; then ShownPart
// reads each.
func (r *SetReader) Shown() int {
	if r.format < showFormat {
		return 0
	}
	return int(r.c.within(0, policy.MaxShown))
}

// ShownPart reads the next part that may be shown.
func (r *SetReader) ShownPart() (kind policy.PartKind, name Ref) {
	kind = policy.PartKind(r.oneOf(uint8(policy.PartClientIP), uint8(policy.PartSPIFFE)))
	if kind == policy.PartConsumer || kind == policy.PartPolicyPath {
		r.c.fail(ErrValue)
	}
	return kind, r.ref(policy.MaxText)
}

// showTail is the length of the list of shown parts at the end of a snapshot that has one.
const showTail = 4

// End returns the first error, including bytes after the last policy.
func (r *SetReader) End() error {
	if r.format >= showFormat {
		r.c.bytes(showTail)
	}
	return r.c.end()
}
