package wire

import (
	"encoding/binary"

	"github.com/weir-proxy/weir/shared/policy"
)

// putShow appends what may be shown and, so that it can be cut off again, its length.
func putShow(dst []byte, parts []policy.Part) []byte {
	start := len(dst)
	dst = putUvarint(dst, int64(len(parts)))
	for _, p := range parts {
		dst = putText(append(dst, byte(p.Kind)), p.Name)
	}
	return binary.LittleEndian.AppendUint32(dst, uint32(len(dst)-start))
}

// Plain is a snapshot as filters read it that know nothing of what may be shown: they show nothing. Other snapshots stay as they
// are; b is not changed.
func Plain(b []byte) []byte {
	const tail = 4
	if len(b) < snapshotHeader+tail || b[len(snapshotMagic)] != showFormat {
		return b
	}
	size := int(binary.LittleEndian.Uint32(b[len(b)-tail:]))
	if size > len(b)-snapshotHeader-tail {
		return b
	}
	b = append([]byte(nil), b[:len(b)-tail-size]...)
	b[len(snapshotMagic)] = snapshotFormat
	binary.LittleEndian.PutUint64(b[snapshotHeader-8:], checksum(b[snapshotHeader:])^PeekVersion(b))
	return b
}

// Show reads what may be shown, calling back for each part. It must follow the last policy.
func (r *SetReader) Show(each func(kind policy.PartKind, name Ref)) {
	c := &r.c
	if !r.shows {
		return
	}
	start := c.pos
	for n := c.within(0, policy.MaxShown); n > 0 && c.err == nil; n-- {
		kind := policy.PartKind(r.oneOf(uint8(policy.PartClientIP), uint8(policy.PartSPIFFE)))
		if kind == policy.PartConsumer || kind == policy.PartPolicyPath {
			c.fail(ErrValue)
		}
		each(kind, r.ref(policy.MaxText))
	}
	size := c.pos - start
	if tail := c.bytes(4); tail != nil && int(binary.LittleEndian.Uint32(tail)) != size {
		c.fail(ErrValue)
	}
}
