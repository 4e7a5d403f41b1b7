package consumers_test

import (
	"encoding/binary"
	"testing"

	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/wire"
)

// ahead is by how much Unix time is ahead of these tests' clock, in milliseconds.
const ahead = 1_790_000_000_000

func newSpecial(t *testing.T, vms, sets int) *process {
	p := newProcess(t, vms, sets)
	p.special = map[keyhash.Key][]byte{}
	for _, vm := range p.vms {
		vm.Ahead = quota.Span(ahead) * quota.Millisecond
	}
	return p
}

// unix is an instant of the test's clock, in seconds, as messages have it.
func unix(seconds int64) int64 { return ahead + seconds*1000 }

func (p *process) isBanned(vm int, n byte, want bool) {
	p.t.Helper()
	if got := p.find(vm, key(n)); got.Banned != want {
		p.t.Errorf("at %d s VM %d takes consumer %d for banned: %v", p.now/sec, vm, n, got.Banned)
	}
}

// A ban that is pushed is known at once in every VM, also of a consumer that no worker has asked
// about, and ends by itself while the control plane is away, and not before.
func TestABanHoldsUntilItsEnd(t *testing.T) {
	p := newSpecial(t, 2, 64)
	if special, exceptionsRevision := p.vms[1].Exceptions(); special || exceptionsRevision != 0 {
		t.Errorf("special %v, exceptionsRevision %d", special, exceptionsRevision)
	}
	p.special[key(1)] = wire.AppendExceptions(nil, wire.Exceptions{Banned: unix(1000 + 3600)})
	p.special[key(2)] = wire.AppendExceptions(nil, wire.Exceptions{Bypass: wire.ForGood})
	p.exceptionsRevision = 4
	p.change(true, map[byte]string{1: "gold", 2: ""})
	p.tick(0)
	for vm := range p.vms {
		p.isBanned(vm, 1, true)
		p.isBanned(vm, 2, false)
		if special, exceptionsRevision := p.vms[vm].Exceptions(); !special || exceptionsRevision != 4 {
			t.Errorf("VM %d: special %v, exceptionsRevision %d", vm, special, exceptionsRevision)
		}
		if got := p.find(vm, key(2)); !got.Bypass || !got.Sure {
			t.Errorf("%+v", got)
		}
	}
	p.tick(3599 * sec)
	p.isBanned(1, 1, true)
	p.expect(1, 1, "") // The tier has lapsed: nothing was heard of the control plane.
	p.tick(sec)
	p.isBanned(1, 1, false)
	if got := p.find(1, key(2)); !got.Bypass {
		t.Errorf("a ban for good has ended: %+v", got)
	}
}

// A node that has missed changes hears of bans though not of all changes, and is not sure of any
// other consumer.
func TestBansComeWithoutTheRest(t *testing.T) {
	p := newSpecial(t, 1, 64)
	p.expect(0, 1, "")
	p.expect(0, 2, "")
	p.tick(0)
	p.answer()
	p.tick(sec)
	p.special[key(1)] = wire.AppendExceptions(nil, wire.Exceptions{Banned: wire.ForGood})
	p.change(false, map[byte]string{1: "", 2: "gold"})
	p.tick(0)
	p.isBanned(0, 1, true)
	if one, two := p.find(0, key(1)), p.find(0, key(2)); !one.Sure || two.Sure {
		t.Errorf("sure of %v and %v", one.Sure, two.Sure)
	}
	if got := p.find(0, key(9)); got.Sure || got.Banned {
		t.Errorf("of an unknown key it knows %+v", got)
	}
}

// Neither invented consumers nor consumers with a tier crowd out a banned consumer.
func TestAFloodLeavesBans(t *testing.T) {
	p := newSpecial(t, 1, 1)
	p.special[key(1)] = wire.AppendExceptions(nil, wire.Exceptions{Banned: wire.ForGood})
	p.change(true, map[byte]string{1: ""})
	for n := range uint64(200) {
		var other keyhash.Key
		binary.LittleEndian.PutUint64(other[:], 1000+n)
		p.tiers[other] = "gold"
		p.find(0, other)
		p.tick(sec / 1000)
		p.answer()
	}
	p.isBanned(0, 1, true)
}
