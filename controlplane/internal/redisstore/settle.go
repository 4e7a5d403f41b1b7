package redisstore

import (
	"encoding/binary"

	"github.com/weir-proxy/weir/controlplane/internal/leases"
)

// settleArg is what the script must know to settle a reservation.
func settleArg(it *leases.Item) []byte {
	s, a := &it.Settles, &it.Ask
	var b []byte
	if a.Windows.Quota != 0 {
		b = arg(s.Nth, s.Actual)
	} else {
		b = arg(a.Params.Num, a.Params.Den, a.Params.Burst, int64(a.Version), s.Nth, s.Actual)
	}
	return binary.BigEndian.AppendUint64(b, s.Name)
}
