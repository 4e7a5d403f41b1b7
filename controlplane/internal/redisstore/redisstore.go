// Package redisstore keeps everything in Redis 6.2 or newer, so that any number of control planes share it. It alone knows Redis
// and Lua. All decisions about time are taken by Redis' own clock.
package redisstore

import (
	"context"
	_ "embed" // for the scripts
	"fmt"
	"log/slog"
	"strconv"
	"sync"

	"github.com/redis/go-redis/v9"

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

// Store is the state in Redis. Make one with Open. It is safe for concurrent use.
type Store struct {
	client redis.UniversalClient
	// cluster: the keys of one script must share a tag.
	cluster bool
	grant   *redis.Script
	log     *slog.Logger

	mu        sync.Mutex
	known     bool          // a secret has been seen, so its absence is a loss
	lost      quota.Instant // when the store was found to have lost its state, 0 for never
	inspected bool
}

// Open makes a store from a URL:
//
//	redis://USER:PASSWORD@HOST:6379/0                                 one server
//	redis://HOST:6379?cluster=true&addr=HOST:PORT                     a Redis Cluster, of which the URL names some nodes
//	redis://HOST:26379/0?master_name=NAME&addr=HOST:PORT              what Sentinels say is the primary; the URL names the Sentinels
//	rediss://HOST:6379?ca_file=FILE&cert_file=FILE&key_file=FILE      with TLS, and a client certificate
//
// Several addr without a master_name mean a cluster. In all forms USER and PASSWORD are the Redis servers', and password_file takes
// the password from a file; sentinel_username and sentinel_password are the Sentinels'. Certificates must be for the host that is
// called, or for server_name. pool_size is how many connections there may be to one server, 10 for each processor if not given.
//
// Open does not connect: a Redis that is away is noticed, and noticed to be back, by each call. What is wrong with the Redis itself
// is logged at the first call of Secret.
func Open(text string, log *slog.Logger) (*Store, error) {
	l, err := locate(text)
	if err != nil {
		return nil, err
	}
	silenceOnce.Do(func() { redis.SetLogger(silence{}) })
	return &Store{
		client: l.client(), cluster: l.cluster, grant: redis.NewScript(clockScript + grantScripts()), log: log,
	}, nil
}

// silence is the Redis client's log: what goes wrong comes back as an error.
type silence struct{}

// Printf drops the message.
func (silence) Printf(context.Context, string, ...any) {}

var silenceOnce sync.Once

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
	s.inspect(ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.known, s.lost = true, quota.Instant(lost)
	return [16]byte([]byte(reply[0])), nil
}
