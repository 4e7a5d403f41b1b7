package redisstore

import (
	"context"
	"encoding/json"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weir-proxy/weir/controlplane/internal/fleet/nodes"
)

// maxNodes bounds the number of nodes in the store: a faulty node may invent ids.
const maxNodes = 10_000

// Touch implements nodes.Store.
func (s *Store) Touch(ctx context.Context, n nodes.Node) error {
	n.Reported = nodes.Reported{}
	raw, err := json.Marshal(n)
	if err != nil {
		return err
	}
	return s.guarded(ctx, keySeen, func() error {
		return ignoreNil(touchNode.Run(ctx, s.client, []string{keyNodes, keySeen, keyStates},
			n.Key(), raw, nodes.Forgotten.Milliseconds(), maxNodes).Err())
	})
}

// Report implements nodes.Store.
func (s *Store) Report(ctx context.Context, key string, r nodes.Reported) (known bool, err error) {
	raw, err := json.Marshal(r)
	if err != nil {
		return false, err
	}
	err = s.guarded(ctx, keySeen, func() error {
		known, err = reportNode.Run(ctx, s.client, []string{keyNodes, keyStates}, key, raw).Bool()
		return err
	})
	return known, err
}

// Nodes implements nodes.Store.
func (s *Store) Nodes(ctx context.Context) ([]nodes.Node, error) {
	// Find the nodes that were seen lately.
	now, err := s.client.Time(ctx).Result()
	if err != nil {
		return nil, err
	}
	since := strconv.FormatInt(now.Add(-nodes.Forgotten).UnixMilli(), 10)
	seen, err := s.client.ZRangeByScoreWithScores(ctx, keySeen, &redis.ZRangeBy{Min: "(" + since, Max: "+inf"}).Result()
	if err != nil || len(seen) == 0 {
		return nil, err
	}
	keys := make([]string, len(seen))
	for i, z := range seen {
		keys[i], _ = z.Member.(string)
	}
	// Read their descriptions and reports.
	values, err := s.client.HMGet(ctx, keyNodes, keys...).Result()
	if err != nil {
		return nil, err
	}
	states, err := s.client.HMGet(ctx, keyStates, keys...).Result()
	if err != nil {
		return nil, err
	}
	// Decode them.
	out := make([]nodes.Node, 0, len(values))
	for i, value := range values {
		text, _ := value.(string)
		var n nodes.Node
		if json.Unmarshal([]byte(text), &n) != nil { // The node was forgotten in between, or another version wrote it.
			continue
		}
		state, _ := states[i].(string)
		_ = json.Unmarshal([]byte(state), &n.Reported) // Empty if the node has reported nothing.
		n.Seen = time.UnixMilli(int64(seen[i].Score))
		out = append(out, n)
	}
	slices.SortFunc(out, func(a, b nodes.Node) int { return strings.Compare(a.Key(), b.Key()) })
	return out, nil
}

// CountNodes implements nodes.Store.
func (s *Store) CountNodes(ctx context.Context, within time.Duration) (int64, error) {
	var count int64
	err := s.guarded(ctx, keySeen, func() (err error) {
		count, err = countNodes.Run(ctx, s.client, []string{keySeen}, within.Milliseconds()).Int64()
		return err
	})
	return count, err
}
