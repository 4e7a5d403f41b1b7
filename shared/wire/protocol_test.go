package wire_test

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/wire"
)

// Each message has its protocol number. A reader refuses an unknown number with a sentence that
// names the side to upgrade.
func TestAnotherProtocolIsRefused(t *testing.T) {
	for name, m := range map[string]struct {
		bytes  []byte
		read   func([]byte) error
		filter bool // It is from a filter.
	}{
		"lease request": {wire.AppendLeaseRequest(nil, request),
			func(b []byte) error { _, err := wire.DecodeLeaseRequest(b); return err }, true},
		"question": {wire.AppendQuestion(nil, []keyhash.Key{{1}}),
			func(b []byte) error { _, err := wire.DecodeQuestion(b); return err }, true},
		"report": {wire.AppendReport(nil, &report),
			func(b []byte) error { _, err := wire.DecodeReport(b); return err }, true},
		"lease reply": {wire.AppendLeaseReply(nil, reply),
			func(b []byte) error { return wire.DecodeLeaseReply(b, new(wire.LeaseReply)) }, false},
		"snapshot": {snapshot(t),
			func(b []byte) error { _, _, _, err := wire.OpenSnapshot(b); return err }, false},
		"consumers": {wire.AppendConsumers(nil, consumers),
			func(b []byte) error { return wire.DecodeConsumers(b, new(wire.Consumers)) }, false},
		"enforcement": {wire.AppendEnforcement(nil, &enforcement),
			func(b []byte) error { return wire.DecodeEnforcement(b, new(wire.Enforcement)) }, false},
		"penalties": {wire.AppendPenalties(nil, &penalties),
			func(b []byte) error { return wire.DecodePenalties(b, new(wire.Penalties)) }, false},
	} {
		above, below := wire.ErrNewer, wire.ErrOlder
		if !m.filter {
			above, below = below, above
		}
		before := bytes.Clone(m.bytes)
		for number, want := range map[uint64]error{
			wire.Protocol: nil, wire.Protocol + 1: above, 255: above, wire.Oldest - 1: below,
		} {
			other := wire.Answer(m.bytes, number)
			if err := m.read(other); err != want || wire.ProtocolOf(other) != number {
				t.Errorf("%s of protocol %d: %v, want %v", name, number, err, want)
			}
		}
		if !bytes.Equal(m.bytes, before) || wire.ProtocolOf(before) != wire.Protocol {
			t.Errorf("%s is of protocol %d, and became %x", name, wire.ProtocolOf(before), m.bytes)
		}
		m.bytes[0] ^= 1
		if err := m.read(m.bytes); err != wire.ErrMagic {
			t.Errorf("%s with another magic: %v", name, err)
		}
	}
	if wire.ProtocolOf([]byte("WRSN")) != 0 {
		t.Error("too short a message has a protocol")
	}
}

// Polls name their protocol, and a filter learns from the answer to another which side is too old.
func TestBothSidesSayWhichToUpgrade(t *testing.T) {
	for number, want := range map[uint64]string{
		wire.Protocol + 1: "upgrade the control plane", 1 << 60: "upgrade the control plane",
		wire.Oldest - 1: "upgrade the filter",
	} {
		err := wire.CheckProtocol(number)
		if err == nil || !strings.HasSuffix(err.Error(), want) {
			t.Errorf("protocol %d: %v", number, err)
			continue
		}
		if got := wire.Refused([]byte(`{"detail":"` + err.Error() + `"}`)); !errors.Is(got, err) {
			t.Errorf("protocol %d: the filter reads %v", number, got)
		}
	}
	if err := errors.Join(wire.CheckProtocol(wire.Protocol), wire.CheckProtocol(wire.Oldest)); err != nil {
		t.Error(err)
	}
}
