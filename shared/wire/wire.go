// Package wire encodes and decodes the messages between the filter and the control plane, such as
// the snapshot, the lease request and the lease reply. Every message starts with its own magic and
// the number of its protocol, is bounded in size, and decodes without allocating in proportion to
// the lengths that it claims. Bytes are untrusted until a decoder has accepted them.
package wire

import (
	"encoding/binary"
	"errors"

	"github.com/weir-proxy/weir/shared/text"
)

// ContentType is the media type of every message.
const ContentType = "application/vnd.weir.v1"

// Bounds of messages.
const (
	MaxSnapshot = 8 << 20
	MaxItems    = 64
	MaxNodeID   = 128
)

// The reasons to refuse bytes.
var (
	ErrMagic     = errors.New("wire: not a message of this kind")
	ErrTruncated = errors.New("wire: the message ends too early")
	ErrTrailing  = errors.New("wire: the message has bytes after its end")
	ErrValue     = errors.New("wire: a field of the message is out of range")
	ErrChecksum  = errors.New("wire: the message is damaged: the checksum differs")
	ErrTooLarge  = errors.New("wire: the message is too large")
)

// cursor reads untrusted bytes. After the first error it returns zero values, so a decoder checks
// once, at the end.
type cursor struct {
	buf []byte
	pos int
	err error
}

func (c *cursor) failWith(err error) {
	if c.err == nil {
		c.err = err
	}
}

// readBytes is not inlined: inlined at all its callers it would be kilobytes of the filter.
//
//go:noinline
func (c *cursor) readBytes(n int) []byte {
	if c.err != nil || n < 0 || n > len(c.buf)-c.pos {
		c.failWith(ErrTruncated)
		return nil
	}
	c.pos += n
	return c.buf[c.pos-n : c.pos]
}

func (c *cursor) u8() uint8 {
	b := c.readBytes(1)
	if b == nil {
		return 0
	}
	return b[0]
}

func (c *cursor) u64() uint64 {
	b := c.readBytes(8)
	if b == nil {
		return 0
	}
	return binary.LittleEndian.Uint64(b)
}

// readUvarint reads an unsigned LEB128 number of at most 63 bits.
//
//go:noinline
func (c *cursor) readUvarint() int64 {
	var v uint64
	for shift := uint(0); shift < 63; shift += 7 {
		b := c.u8()
		v |= uint64(b&0x7f) << shift
		if b < 0x80 {
			return int64(v)
		}
	}
	c.failWith(ErrValue)
	return 0
}

// readWithin reads a number between low and high. It is not inlined, for the size of the filter.
//
//go:noinline
func (c *cursor) readWithin(low, high int64) int64 {
	v := c.readUvarint()
	if v < low || v > high {
		c.failWith(ErrValue)
		return low
	}
	return v
}

// readText reads a length, at most high, and that number of bytes.
//
//go:noinline
func (c *cursor) readText(high int) []byte {
	return c.readBytes(int(c.readWithin(0, int64(high))))
}

// endMessage refuses trailing bytes and returns the first error.
func (c *cursor) endMessage() error {
	if c.err == nil && c.pos != len(c.buf) {
		c.err = ErrTrailing
	}
	return c.err
}

// putUvarint appends an unsigned LEB128 number. It is not inlined, for the size of the filter.
//
//go:noinline
func putUvarint(dst []byte, v int64) []byte { return binary.AppendUvarint(dst, uint64(v)) }

func putText(dst []byte, s string) []byte {
	return text.Append(putUvarint(dst, int64(len(s))), s)
}

// checksum finds damage in storage and transit. It does not protect against forgery; the node token
// does.
func checksum(b []byte) uint64 { return uint64(text.NewHash64.Add(b)) }

// PeekVersion returns the version that a snapshot claims, without any other check; 0 if it is too
// short.
func PeekVersion(b []byte) uint64 {
	c := cursor{buf: b}
	c.readBytes(len(snapshotMagic) + 1)
	return c.u64()
}

// Reseal puts the right checksum into the bytes of a snapshot, so that tests can reach the checks
// after it.
func Reseal(b []byte) []byte {
	b = append([]byte(nil), b...)
	if len(b) >= snapshotHeader {
		binary.LittleEndian.PutUint64(b[snapshotHeader-8:], checksum(b[snapshotHeader:])^PeekVersion(b))
	}
	return b
}
