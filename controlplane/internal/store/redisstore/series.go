package redisstore

import (
	"context"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weir-proxy/weir/controlplane/internal/observe/series"
)

// keySeries begins the keys of histories: a hash for each slot, replica → its counts.
const keySeries = "weir:{series}:"

func seriesKey(slot series.Slot) string {
	return keySeries + string(slot.Kind) + ":" + strconv.FormatInt(slot.Number, 10)
}

// PutSlot implements series.Store.
func (s *Store) PutSlot(ctx context.Context, slot series.Slot, replica string, text []byte) error {
	key := seriesKey(slot)
	age := time.Duration(slot.Kind.Kept()+1) * slot.Kind.Step()
	return s.guarded(ctx, key, func() error {
		_, err := s.client.Pipelined(ctx, func(p redis.Pipeliner) error {
			p.HSet(ctx, key, replica, text)
			p.PExpire(ctx, key, age)
			return nil
		})
		return err
	})
}

// Slots implements series.Store.
func (s *Store) Slots(ctx context.Context, slots []series.Slot) ([]map[string][]byte, error) {
	found := make([]map[string][]byte, len(slots))
	keys := make([]string, len(slots))
	for i, slot := range slots {
		keys[i] = seriesKey(slot)
	}
	err := s.guarded(ctx, keySeries, func() error {
		lists, err := s.runForEach(ctx, keys, "HGETALL")
		for i, list := range lists {
			found[i] = map[string][]byte{}
			for at := 0; at+1 < len(list); at += 2 {
				found[i][list[at]] = []byte(list[at+1])
			}
		}
		return err
	})
	return found, err
}
