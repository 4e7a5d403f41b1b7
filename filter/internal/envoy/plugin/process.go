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

// process is what all VMs of an Envoy process agree on: a random number that names this run of it,
// and a secret for partition keys while there is no control plane to give one.
type process struct {
	id     uint64
	secret [16]byte
}

// nameSpace keeps plugins apart that share Envoy's shared data, which goes by vm_id alone, and
// filters of different protocols. Plugins of one control plane share what it says and
// what they have leased, also an old and a new configuration of one plugin; a plugin that works
// alone shares with those that have its name.
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

// agreedSets is the size of the table of consumers or of penalties, of which the first plugin to
// start has said how large it is to be. In a table of another size nothing would be found of what
// is known, bans among it.
func agreedSets(space shareddata.Space, name shareddata.Name, sets int) int {
	var value [4]byte
	binary.LittleEndian.PutUint32(value[:], uint32(sets))
	shareddata.Agree(host.SharedData{}, space.Key(name), value[:])
	return int(binary.LittleEndian.Uint32(value[:]))
}

// clockSlack is by how much two clocks may be apart before a process takes it that the clock of the
// machine was set. What two VMs find differs by much less, see timer.Ahead.
const clockSlack = 10 * quota.Millisecond

// agreed is by how much Unix time is ahead of the clock that decides, for all VMs of the process,
// given what this one finds: an instant that clients see is then the same Unix second for
// all.
func agreed(key shareddata.Key, found quota.Span) quota.Span {
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

// random is a number of this VM's own.
func random() uint64 {
	var b [8]byte
	host.Random(b[:])
	return binary.LittleEndian.Uint64(b[:])
}
