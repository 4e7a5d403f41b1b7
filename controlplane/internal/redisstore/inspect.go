package redisstore

import (
	"context"
	"log/slog"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"
)

// ACL is the least that a Redis user must be allowed, as `ACL SETUSER weir on >PASSWORD` wants it.
// The second line is for a Redis Cluster, and for any database but 0.
const ACL = "resetchannels ~weir:* -@all +eval +evalsha +info +time +get +getdel +set " +
	"+hget +hgetall +hmget +hset +hdel +hkeys +hscan +zscan " +
	"+zadd +zcard +zcount +zrange +zrangebyscore +zrem +zremrangebyrank +zremrangebyscore +pexpire " +
	"+command +cluster|slots +asking +select"

// The least that the store needs of a Redis.
const (
	leastMajor, leastMinor = 6, 2
	policyThatKeeps        = "noeviction"
)

// inspect logs, once, which servers are too old or may evict what they hold.
func (s *Store) inspect(ctx context.Context) {
	s.mu.Lock()
	done := s.inspected
	s.inspected = true
	s.mu.Unlock()
	if done {
		return
	}
	err := s.eachPrimary(ctx, func(ctx context.Context, server redis.Cmdable, log *slog.Logger) error {
		text, err := server.Info(ctx).Result()
		if err == nil {
			warn(text, log)
		}
		return err
	})
	switch {
	case err == nil:
	case redis.HasErrorPrefix(err, "NOPERM"):
		s.log.Warn("Redis cannot be inspected: its user is not allowed the command INFO")
	default: // The next call tries again.
		s.mu.Lock()
		s.inspected = false
		s.mu.Unlock()
	}
}

// eachPrimary calls a function for the server, or for all servers of a cluster that take writes.
func (s *Store) eachPrimary(ctx context.Context, call func(context.Context, redis.Cmdable, *slog.Logger) error) error {
	if cluster, ok := s.client.(*redis.ClusterClient); ok {
		return cluster.ForEachMaster(ctx, func(ctx context.Context, server *redis.Client) error {
			return call(ctx, server, s.log.With("server", server.Options().Addr))
		})
	}
	return call(ctx, s.client, s.log)
}

// warn logs what is wrong with a server by its INFO.
func warn(info string, log *slog.Logger) {
	facts := facts(info)
	if version := facts["redis_version"]; tooOld(version) {
		log.Warn("Redis is older than 6.2, the oldest that can hold the state: grants will fail", "version", version)
	}
	if policy := facts["maxmemory_policy"]; facts["maxmemory"] != "0" && policy != "" && policy != policyThatKeeps {
		log.Warn("Redis may forget state that counts when its memory is full, "+
			"and limits then let through too much: set maxmemory-policy noeviction",
			"maxmemory_policy", policy, "maxmemory", facts["maxmemory"])
	}
}

// facts are the values of an INFO by name.
func facts(info string) map[string]string {
	facts := map[string]string{}
	for line := range strings.Lines(info) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			facts[name] = value
		}
	}
	return facts
}

func tooOld(version string) bool {
	first, rest, _ := strings.Cut(version, ".")
	second, _, _ := strings.Cut(rest, ".")
	major, err := strconv.Atoi(first)
	if err != nil {
		return false // It is no version.
	}
	minor, err := strconv.Atoi(second)
	return major < leastMajor || major == leastMajor && err == nil && minor < leastMinor
}
