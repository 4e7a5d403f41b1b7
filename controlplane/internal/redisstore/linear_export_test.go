package redisstore

import (
	"log/slog"
	"strings"

	"github.com/redis/go-redis/v9"
)

// SpoilGrant plants a bug in the script that grants and says whether the text to replace was there, once.
func (s *Store) SpoilGrant(old, new string) bool {
	script := clockScript + grantScripts()
	s.grant = redis.NewScript(strings.Replace(script, old, new, 1))
	return strings.Count(script, old) == 1
}

// OpenRetrying is Open, but the client sends again what got no answer.
func OpenRetrying(url string, log *slog.Logger) (*Store, error) {
	s, err := Open(url, log)
	if err != nil {
		return nil, err
	}
	l, err := locate(url)
	if err != nil {
		return nil, err
	}
	l.options.MaxRetries = 3
	_ = s.client.Close() // It has not connected yet.
	s.client = l.client()
	return s, nil
}
