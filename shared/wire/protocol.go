package wire

import (
	"errors"

	"github.com/weir-proxy/weir/shared/text"
)

// Protocol is the number of the format in which a build writes messages, the store and the shared
// data of Envoy's workers. It grows by one with each change that a reader of the number before
// would refuse or misread. Its history:
//
//	1  the first
const Protocol = 1

// Oldest is the oldest Protocol that this build still reads and answers with.
const Oldest = 1

// The reasons to refuse a message for its Protocol, in the words of both sides.
var (
	ErrNewer = errors.New("the filter speaks a newer protocol than the control plane: upgrade the control plane")
	ErrOlder = errors.New("the filter speaks an older protocol than the control plane: " + upgradeFilter)
)

const upgradeFilter = "upgrade the filter"

// The reasons to refuse a store for its Protocol.
var (
	ErrNewerStore = errors.New("a newer build has written it: upgrade the control plane")
	ErrOlderStore = errors.New("an older build has written it that this one does not read: " +
		"first start a build that still does")
	ErrUnreleasedStore = errors.New("a build from before 0.1.0 has written it: begin with an empty store")
)

// CheckProtocol returns why a control plane refuses a filter's protocol: ErrNewer, ErrOlder, or nil
// if it does not refuse it.
func CheckProtocol(number uint64) error { return checkRange(number, ErrNewer, ErrOlder) }

// CheckStore returns why a control plane refuses a store's protocol; nil if it does not refuse it.
func CheckStore(number uint64) error { return checkRange(number, ErrNewerStore, ErrOlderStore) }

// checkRange returns an error for a number above Protocol, and another error for a number below
// Oldest.
func checkRange(number uint64, above, below error) error {
	switch {
	case number > Protocol:
		return above
	case number < Oldest:
		return below
	}
	return nil
}

// Refused returns why a control plane has refused a filter for its protocol: ErrOlder if its answer
// says so, else ErrNewer.
func Refused(answer []byte) error {
	for i := range answer {
		if text.HasPrefix(answer[i:], upgradeFilter) {
			return ErrOlder
		}
	}
	return ErrNewer
}

// ProtocolOf returns the number of a message's protocol; 0 if it is too short to have one.
func ProtocolOf(message []byte) uint64 {
	if len(message) < headerSize {
		return 0
	}
	return uint64(message[headerSize-1])
}

// Answer returns a message for a filter of a protocol, which it used in its request. The message
// itself is not changed; it is copied if it has another number.
func Answer(message []byte, protocol uint64) []byte {
	if ProtocolOf(message) == protocol {
		return message
	}
	message = append([]byte(nil), message...)
	message[headerSize-1] = byte(protocol)
	return message
}

// headerSize is the length of a magic and the number of the protocol.
const headerSize = 4 + 1

// appendHeader appends the first bytes of a message.
func appendHeader(dst []byte, magic string) []byte { return append(text.Append(dst, magic), Protocol) }

// readAsked checks the header of a message from a filter; readAnswered checks the header of a
// message from a control plane.
func (c *cursor) readAsked(magic string)    { c.readHeader(magic, ErrNewer, ErrOlder) }
func (c *cursor) readAnswered(magic string) { c.readHeader(magic, ErrOlder, ErrNewer) }

func (c *cursor) readHeader(magic string, above, below error) {
	b := c.readBytes(headerSize)
	if !text.HasPrefix(b, magic) {
		c.err = ErrMagic
		return
	}
	if err := checkRange(uint64(b[headerSize-1]), above, below); err != nil {
		c.failWith(err)
	}
}
