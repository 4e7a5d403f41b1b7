//go:build tinygo

package plugin

import (
	"encoding/binary"

	"github.com/weir-proxy/weir/filter/internal/base/shareddata"
	"github.com/weir-proxy/weir/filter/internal/envoy/host"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/text"
	"github.com/weir-proxy/weir/shared/wire"
)

// process has the values that all VMs of an Envoy process agree on: a random number that identifies
// this run of it, and a secret for partition keys that a node without a control plane uses.
type process struct {
	id     uint64
	secret [16]byte
}

// nameSpace separates plugins that share Envoy's shared data, which depends on vm_id only, and
// filters of different protocols. Plugins of one control plane share its messages and their leased
// tokens; so do the old and the new configuration of a plugin. A plugin that works alone shares
// with plugins of the same name.
func nameSpace(config *policy.Plugin) shareddata.Space {
	h := addText(text.NewHash64, host.Property("plugin_root_id"))
	if cp := config.ControlPlane; cp != nil {
		h = addText(h, []byte(cp.Cluster))
		h = addText(h, []byte(cp.Authority))
		h = addText(h, []byte(config.NodeID))
	} else {
		h = addText(h, host.Property("plugin_name"))
	}
	return shareddata.Space{wire.Protocol, byte(h), byte(h >> 8), byte(h >> 16)}
}

// addText adds a text and its length to a hash, so that texts cannot run into each other.
func addText(h text.Hash64, b []byte) text.Hash64 {
	return h.Add(b).AddNumber(uint64(len(b)))
}

// thisProcess reads the process's numbers, or draws them if this VM is the first.
func thisProcess(space shareddata.Space) process {
	var value [24]byte
	host.Random(value[:])
	shareddata.Agree(host.SharedData{}, space.Key(shareddata.Process), value[:])
	p := process{id: binary.LittleEndian.Uint64(value[:8])}
	copy(p.secret[:], value[8:])
	return p
}

// agreedSets returns the size of the table of consumers or of penalties. The first plugin to start
// sets the size. In a table of another size a worker would not find the entries of other workers,
// such as bans.
func agreedSets(space shareddata.Space, name shareddata.Name, sets int) int {
	var value [4]byte
	binary.LittleEndian.PutUint32(value[:], uint32(sets))
	shareddata.Agree(host.SharedData{}, space.Key(name), value[:])
	return int(binary.LittleEndian.Uint32(value[:]))
}

// clockSlack is the largest difference of two clocks that does not mean that the machine's clock
// was set. The clocks of two VMs differ by much less, see timer.Ahead.
const clockSlack = 10 * quota.Millisecond

// agreedAhead returns the time by which Unix time is ahead of the deciding clock, for all VMs of
// the process. Found is this VM's own value. So an instant that clients see is the same Unix second
// from each VM.
func agreedAhead(key shareddata.Key, found quota.Span) quota.Span {
	var data host.SharedData
	value, _, _ := data.Get(key[:])
	if len(value) == 8 {
		known := quota.Span(binary.LittleEndian.Uint64(value))
		if found-known <= clockSlack && known-found <= clockSlack {
			return known
		}
	}
	var next [8]byte
	binary.LittleEndian.PutUint64(next[:], uint64(found))
	data.Put(key[:], next[:])
	return found
}

// randomNumber returns a random number of this VM's own.
func randomNumber() uint64 {
	var b [8]byte
	host.Random(b[:])
	return binary.LittleEndian.Uint64(b[:])
}
