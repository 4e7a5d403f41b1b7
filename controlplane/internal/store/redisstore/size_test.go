package redisstore_test

import (
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/weir-proxy/weir/controlplane/internal/grant/leases"
	"github.com/weir-proxy/weir/controlplane/internal/store/redisstore"
	"github.com/weir-proxy/weir/controlplane/internal/store/storetest"
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/lease"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/test/support/redistest"
)

// The page on choosing says how many bytes of the memory of Redis 7.0 a bucket takes, its key
// included: 100 a minute, all used, evenly. Builds of Redis differ a little in their allocations,
// so the figure may be a tenth off. The test only logs the figures of other servers.
func TestThePageSaysWhatABucketTakesInRedis(t *testing.T) {
	page, err := os.ReadFile("../../../../docs/choose/choosing.md")
	if err != nil {
		t.Fatal(err)
	}
	s, set := virtual(t, open(t, redistest.Start(t)))
	info, err := s.Client().Info(t.Context(), "server").Result()
	if err != nil {
		t.Fatal(err)
	}
	compared := strings.Contains(info, "redis_version:7.0.")
	tokens := lease.Ask{Params: params(t, 100, quota.Minute, 100), Version: 1, Waiting: 1, Cost: 1, Nodes: 1}
	for number, row := range []struct {
		name, kind string
		ask        lease.Ask
	}{
		{"`token_bucket`, `leaky_bucket`", "b", tokens},
		{"`fixed_window`", "w", window(t, quota.FixedWindow, 100, quota.Minute, 1)},
		{"`sliding_window_counter`", "w", window(t, quota.SlidingWindowCounter, 100, quota.Minute, 1)},
		{"`sliding_window`", "w", window(t, quota.SlidingWindow, 100, quota.Minute, 1)},
		{"`sliding_log`", "w", window(t, quota.SlidingLog, 100, quota.Minute, 1)},
	} {
		size := bytesInRedis(t, s, set, byte(number+1), row.kind, row.ask)
		t.Logf("a bucket of %s takes %d bytes", row.name, size)
		if !compared {
			continue
		}
		m := regexp.MustCompile(regexp.QuoteMeta("| "+row.name+" |") + ` \d+ \| (\d+) \|`).FindSubmatch(page)
		if m == nil {
			t.Errorf("docs/choose/choosing.md has no row of %s; a bucket takes %d bytes of Redis", row.name, size)
			continue
		}
		if said, err := strconv.ParseInt(string(m[1]), 10, 64); err != nil || size < said*9/10 || size > said*11/10 {
			t.Errorf("docs/choose/choosing.md says %d for %s; a bucket takes %d bytes of Redis", said, row.name, size)
		}
	}
}

// bytesInRedis is the memory of one bucket after 100 requests that are spread over a minute.
func bytesInRedis(
	t *testing.T, s *redisstore.Store, set func(quota.Instant), n byte, kind string, ask lease.Ask,
) int64 {
	t.Helper()
	for i := range 100 {
		set(storetest.Base + quota.Instant(i)*600_000)
		if _, err := s.Grant(t.Context(), []leases.Item{{Bucket: keyhash.Key{n}, Ask: ask}}); err != nil {
			t.Fatal(err)
		}
	}
	key := fmt.Sprintf("weir:{%02x}:%s:%02x%030x", n, kind, n, 0)
	size, err := s.Client().MemoryUsage(t.Context(), key).Result()
	if err != nil {
		t.Fatal(key, err)
	}
	return size
}
