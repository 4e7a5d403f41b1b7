package redisstore

import (
	"encoding/binary"

	"github.com/weir-proxy/weir/controlplane/internal/grant/leases"
)

// settleArg encodes the arguments of the script that settle a reservation.
func settleArg(it *leases.Item) []byte {
	s, a := &it.Settles, &it.Ask
	var b []byte
	if a.Windows.Quota != 0 {
		b = encodeArg(s.Nth, s.Actual)
	} else {
		b = encodeArg(a.Params.Num, a.Params.Den, a.Params.Burst, int64(a.Version), s.Nth, s.Actual)
	}
	return binary.BigEndian.AppendUint64(b, s.Name)
}
