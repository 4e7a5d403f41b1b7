package redisstore

import (
	"context"
	_ "embed" // for the script
	"encoding/binary"
	"fmt"
	"strconv"

	"github.com/weir-proxy/weir/shared/inflight"
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/quota"
)

//go:embed scripts/holders.lua
var holdersScript string

// claimArg encodes the arguments of the grant script for a claim of permits.
func claimArg(c *inflight.Claim) []byte {
	b := encodeArg(int64(c.Seq), c.Hold, c.Lent, c.Need, c.Spare, c.Limit, max(c.Nodes, 1))
	return append(b, nodeField(c.Node)...)
}

// nodeField returns the field of a node in the hash of a bucket's permits.
func nodeField(n inflight.Node) []byte {
	return append(binary.BigEndian.AppendUint64(nil, n.Boot), n.ID...)
}

// Holders implements leases.Buckets.
func (s *Store) Holders(ctx context.Context, bucket keyhash.Key) (l inflight.Ledger, now quota.Instant, err error) {
	const fields = 6
	reply, err := s.holders.Run(ctx, s.client, []string{permitsKey(bucket)}).StringSlice()
	if err != nil {
		return l, 0, err
	}
	if len(reply)%fields != 1 {
		return l, 0, fmt.Errorf("cannot read the script's answer: it has %d values, not 1 and %d for each holder",
			len(reply), fields)
	}
	at, err := strconv.ParseInt(reply[0], 10, 64)
	for reply = reply[1:]; err == nil && len(reply) > 0; reply = reply[fields:] {
		var h inflight.Holding
		h, err = readHolding(reply[0], reply[1:fields])
		l.Holdings = append(l.Holdings, h)
	}
	return l, quota.Instant(at), err
}

// readHolding decodes a node's permits: the node as nodeField encodes it, and five numbers.
func readHolding(node string, texts []string) (h inflight.Holding, err error) {
	const boot = 8
	if len(node) < boot {
		return h, fmt.Errorf("cannot read permits: %q is no node", node)
	}
	var numbers [5]int64
	for i := range numbers {
		numbers[i], err = strconv.ParseInt(texts[i], 10, 64)
		if err != nil {
			return h, err
		}
	}
	h.Node = inflight.Node{ID: node[boot:], Boot: binary.BigEndian.Uint64([]byte(node[:boot]))}
	h.Seq, h.Permits, h.Until = uint64(numbers[0]), numbers[1], quota.Instant(numbers[2])
	h.Ceiling, h.Want = numbers[3], numbers[4]
	return h, nil
}
