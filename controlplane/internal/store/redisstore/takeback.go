package redisstore

import (
	"encoding/binary"

	"github.com/weir-proxy/weir/controlplane/internal/grant/leases"
)

// returnArg encodes the arguments of the script that take tokens back.
func returnArg(it *leases.Item) []byte {
	back := &it.Returns
	b := encodeArg(int64(back.Term), max(back.Unused, 0), max(back.Used, 0))
	return binary.BigEndian.AppendUint64(b, back.Name)
}
