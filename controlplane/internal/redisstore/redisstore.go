// Package redisstore keeps everything in Redis 6.2 or newer, so that any number of control planes share it. It alone knows Redis
// and Lua. All decisions about time are taken by Redis' own clock.
package redisstore

import (
	"context"
	_ "embed" // for the scripts
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/weir-proxy/weir/shared/quota"
)

//go:embed scripts/clock.lua
var clockScript string

//go:embed scripts/whole.lua
var wholeScript string

//go:embed scripts/tokens.lua
var tokensScript string

//go:embed scripts/windows.lua
var windowsScript string

//go:embed scripts/grant.lua
var grantScript string

// grantScripts are the parts of the script that grants, but for its clock.
func grantScripts() string { return wholeScript + tokensScript + windowsScript + grantScript }

//go:embed scripts/append.lua
var appendScript string

//go:embed scripts/secret.lua
var secretScript string

//go:embed scripts/touch.lua
var touchScript string

//go:embed scripts/count.lua
var countScript string

var (
	appendVersion = redis.NewScript(appendScript)
	secretOrNew   = redis.NewScript(secretScript)
	touchNode     = redis.NewScript(touchScript)
	countNodes    = redis.NewScript(countScript)
)

// Time-outs towards Redis; callers' contexts are usually shorter.
const (
	dialTimeout = 500 * time.Millisecond
	ioTimeout   = time.Second
	poolTimeout = 200 * time.Millisecond
)

// Store is the state in Redis. Make one with Open. It is safe for concurrent use.
type Store struct {
	client redis.UniversalClient
	// cluster: the keys of one script must share a tag.
	cluster bool
	grant   *redis.Script

	mu    sync.Mutex
	known bool          // a secret has been seen, so its absence is a loss
	lost  quota.Instant // when the store was found to have lost its state, 0 for never
}

// Open makes a store from a redis:// or rediss:// URL; with addr=HOST:PORT parameters it is a Redis Cluster, of which the URL
// names some nodes. Open does not connect: a Redis that is away is noticed, and noticed to be back, by each call.
func Open(text string) (*Store, error) {
	unreadable := errors.New("the Redis URL cannot be read") // The parsers' errors might show the password.
	u, err := url.Parse(text)
	if err != nil {
		return nil, unreadable
	}
	if u.Query().Has("addr") {
		options, err := redis.ParseClusterURL(text)
		if err != nil {
			return nil, unreadable
		}
		// A script that timed out may have been run: to run it again would charge twice.
		options.MaxRetries, options.ContextTimeoutEnabled = -1, true
		options.DialTimeout, options.DialerRetries = dialTimeout, 1
		options.ReadTimeout, options.WriteTimeout, options.PoolTimeout = ioTimeout, ioTimeout, poolTimeout
		options.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
		return newStore(redis.NewClusterClient(options), true), nil
	}
	options, err := redis.ParseURL(text)
	if err != nil {
		return nil, unreadable
	}
	options.MaxRetries, options.ContextTimeoutEnabled = -1, true
	options.DialTimeout, options.DialerRetries = dialTimeout, 1
	options.ReadTimeout, options.WriteTimeout, options.PoolTimeout = ioTimeout, ioTimeout, poolTimeout
	options.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	return newStore(redis.NewClient(options), false), nil
}

// silence is the Redis client's log: what goes wrong comes back as an error.
type silence struct{}

// Printf drops the message.
func (silence) Printf(context.Context, string, ...any) {}

var silenceOnce sync.Once

func newStore(client redis.UniversalClient, cluster bool) *Store {
	silenceOnce.Do(func() { redis.SetLogger(silence{}) })
	return &Store{client: client, cluster: cluster, grant: redis.NewScript(clockScript + grantScripts())}
}

// Close closes the connections.
func (s *Store) Close() error { return s.client.Close() }

// Secret implements push.Secrets. A secret that was there and is gone means that Redis has lost its state: it gets the candidate
// and a note of when, and from then on buckets that may have been in use start with less than their burst. Secret is called all
// the time, so between the loss and the note lies no more than the time between two calls.
func (s *Store) Secret(ctx context.Context, candidate [16]byte) ([16]byte, error) {
	s.mu.Lock()
	known := "0"
	if s.known {
		known = "1"
	}
	s.mu.Unlock()
	reply, err := secretOrNew.Run(ctx, s.client, []string{keySecret, keyLost}, candidate[:], known).StringSlice()
	if err != nil {
		return [16]byte{}, err
	}
	if len(reply) != 2 || len(reply[0]) != len(candidate) {
		return [16]byte{}, fmt.Errorf("%s does not hold a secret of %d bytes", keySecret, len(candidate))
	}
	lost, err := strconv.ParseInt(reply[1], 10, 64)
	if err != nil {
		return [16]byte{}, fmt.Errorf("%s does not hold an instant: %w", keyLost, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.known, s.lost = true, quota.Instant(lost)
	return [16]byte([]byte(reply[0])), nil
}
