package redisstore

import (
	"github.com/redis/go-redis/v9"
)

const testClockKey = "test:now"

// UseTestClock makes grants read the time from a key instead of Redis' clock; the rest of the script is the one in use.
func (s *Store) UseTestClock() {
	s.grant = redis.NewScript("local now = redis.call('GET', '" + testClockKey + "') + 0\n" + grantScripts())
}

// Client is the connection, for tests that look at keys.
func (s *Store) Client() redis.UniversalClient { return s.client }
