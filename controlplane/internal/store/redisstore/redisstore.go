// Package redisstore keeps all state in Redis 6.2 or newer, so that several control planes can
// share it. No other package uses Redis or Lua. Redis' own clock decides everything about time.
package redisstore

import (
	"context"
	_ "embed" // for the scripts
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weir-proxy/weir/controlplane/internal/grant/gather"
	"github.com/weir-proxy/weir/controlplane/internal/grant/leases"
	"github.com/weir-proxy/weir/controlplane/internal/ground/breaker"
	"github.com/weir-proxy/weir/controlplane/internal/ground/errs"
	"github.com/weir-proxy/weir/controlplane/internal/ground/every"
)

//go:embed scripts/clock.lua
var clockScript string

//go:embed scripts/whole.lua
var wholeScript string

//go:embed scripts/tokens.lua
var tokensScript string

//go:embed scripts/windows.lua
var windowsScript string

//go:embed scripts/permits.lua
var permitsScript string

//go:embed scripts/grant.lua
var grantScript string

// grantScripts returns the grant script without its first part, the clock.
func grantScripts() string {
	return wholeScript + tokensScript + windowsScript + permitsScript + verbsScript() + grantScript
}

//go:embed scripts/append.lua
var appendScript string

//go:embed scripts/notice.lua
var noticeScript string

//go:embed scripts/touch.lua
var touchScript string

//go:embed scripts/report.lua
var reportScript string

//go:embed scripts/count.lua
var countScript string

var (
	appendVersion = redis.NewScript(auditScript + appendScript)
	touchNode     = redis.NewScript(touchScript)
	reportNode    = redis.NewScript(reportScript)
	countNodes    = redis.NewScript(countScript)
)

// Store is the state in Redis. Make a Store with Open. It is safe for concurrent use.
type Store struct {
	client redis.UniversalClient
	// people is the client for commands of people; see lanes.
	people redis.UniversalClient
	// cluster is true if the store is a Redis Cluster: then the keys of one script must share a
	// tag.
	cluster bool
	// at is the parsed URL.
	at *location
	// grant is the grant script, source its text.
	grant  *redis.Script
	source string
	// lines gather requests for the grant script: one line for each tag, or only the first.
	lines [tagCount]gather.Line[*portion]
	// called receives the number of buckets in each call of the grant script.
	called func(buckets int)
	// read is the script that reads one bucket.
	read *redis.Script
	// holders is the script that reads the holders of a bucket's permits.
	holders *redis.Script
	log     *slog.Logger

	// fill is the initial fill of a bucket whose state was lost, in percent of its burst.
	fill int64
	// lent remembers the answers about permits.
	lent leases.Lent
	// breakers are the breakers of a cluster's servers, by address.
	breakers *breaker.Group
	// now is the clock for far and lent; begun is the time when the store was opened.
	now   func() time.Time
	begun time.Time
	far   distances
	// other is the error about a store of another protocol; nil while the store is used.
	other atomic.Pointer[errs.Error]
	// closing ends when the store is closed. background has the goroutines that Close waits for.
	closing    context.Context
	close      context.CancelFunc
	background sync.WaitGroup
	laying     atomic.Bool

	mu        sync.Mutex
	known     bool // a secret was seen, so a missing secret is a loss
	inspected bool
	// secretless is the number of looks in a row that found no secret.
	secretless int
	mayEvict   bool
	kept       map[byte]string // the run id of the process that keeps a tag's buckets
	looked     map[byte]looked // the last look at the server with a tag
	servers    map[string]bool // the addresses of a cluster's primaries
}

// Option configures a store.
type Option func(*Store)

// LostFill sets the initial fill of a bucket whose state was lost, in percent of its burst;
// leases.LostFill by default.
func LostFill(percent int64) Option { return func(s *Store) { s.fill = percent } }

// Breakers sets the breakers of a cluster's servers, by their addresses. Without them every server
// is always called.
func Breakers(g *breaker.Group) Option { return func(s *Store) { s.breakers = g } }

// Now sets the clock that measures RoundTrip and the age of answers. By default the clock returns
// time.Time{}: RoundTrip is 0, and answers have no age.
func Now(now func() time.Time) Option { return func(s *Store) { s.now = now } }

// MayEvict accepts a Redis that may evict state that cannot be lost.
func MayEvict(yes bool) Option { return func(s *Store) { s.mayEvict = yes } }

// Calls sets a function that receives the number of buckets in each call of the grant script.
func Calls(note func(buckets int)) Option { return func(s *Store) { s.called = note } }

// Open makes a store from a URL:
//
//	redis://USER:PASSWORD@HOST:6379/0                                 one server
//	redis://HOST:6379?cluster=true&addr=HOST:PORT                     a Redis Cluster, of which the URL names some nodes
//	redis://HOST:26379/0?master_name=NAME&addr=HOST:PORT              what Sentinels say is the primary; the URL names the Sentinels
//	rediss://HOST:6379?ca_file=FILE&cert_file=FILE&key_file=FILE      with TLS, and a client certificate
//
// If the URL has several addr and no master_name, it is a cluster. In all forms USER and PASSWORD
// are for the Redis servers, and password_file names a file with the password; sentinel_username
// and sentinel_password are for the Sentinels. Certificates must be for the host that is called, or
// for server_name. pool_size is the maximum number of connections to one server, beside the
// connections for people's commands. The default is 10 for each processor; in a cluster 5 for each,
// but at least 32.
//
// Open does not connect: each call notices whether Redis is away or back. Inspect, or the first
// call of Heads, finds problems of the Redis itself.
func Open(text string, log *slog.Logger, options ...Option) (*Store, error) {
	l, err := parseLocation(text)
	if err != nil {
		return nil, err
	}
	l.log = log
	if l.options.MasterName != "" {
		l.sentinels = newSentinels(l.options, log)
		l.sentinels.dialer = l.newDialer
	} else {
		l.names = newNames(log)
	}
	// Make the clients and the scripts.
	silenceOnce.Do(func() { redis.SetLogger(silence{}) })
	s := &Store{
		client: l.newClient(), people: l.newPeopleClient(), cluster: l.cluster, at: l,
		log: log, fill: leases.LostFill, kept: map[byte]string{}, looked: map[byte]looked{},
		called: func(int) {}, now: func() time.Time { return time.Time{} },
	}
	for i := range s.lines {
		s.lines[i].Init(fullCall, gatherTime, s.callTogether)
	}
	s.setGrant(clockScript + grantScripts())
	s.read = redis.NewScript(clockScript + bucketScript)
	s.holders = redis.NewScript(clockScript + holdersScript)
	s.closing, s.close = context.WithCancel(context.Background())
	// Apply the options, then add the hooks, the outermost first.
	for _, o := range options {
		o(s)
	}
	s.begun = s.now()
	s.client.AddHook(only{&s.other}) // Before the lanes, so that it also holds for commands of people.
	s.client.AddHook(lanes{s.people})
	// Follow the primary, or the addresses of server names.
	if l.sentinels != nil {
		l.sentinels.askSentinels(s.closing, func(f func()) { s.background.Go(f) })
	} else {
		s.background.Go(func() { every.Period(s.closing, namesEvery, l.names.follow) })
	}
	return s, nil
}

// silence replaces the log of the Redis client: its failures are returned as errors.
type silence struct{}

// Printf drops the message.
func (silence) Printf(context.Context, string, ...any) {}

var silenceOnce sync.Once

func (s *Store) setGrant(source string) { s.grant, s.source = redis.NewScript(source), source }

// Close ends the work in the background, then closes the connections. A connection that the server
// has closed before is no error.
func (s *Store) Close() error {
	s.close()
	s.background.Wait()
	err := errors.Join(s.client.Close(), s.people.Close())
	if errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) {
		return nil
	}
	return err
}
