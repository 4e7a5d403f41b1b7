// Package redisstore keeps everything in Redis 6.2 or newer, so that any number of control planes
// share it. It alone knows Redis and Lua. All decisions about time are taken by Redis' own clock.
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

	"github.com/weir-proxy/weir/controlplane/internal/breaker"
	"github.com/weir-proxy/weir/controlplane/internal/errs"
	"github.com/weir-proxy/weir/controlplane/internal/every"
	"github.com/weir-proxy/weir/controlplane/internal/gather"
	"github.com/weir-proxy/weir/controlplane/internal/leases"
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

// grantScripts returns the parts of the script that grants, except its clock.
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

// Store is the state in Redis. Make one with Open. It is safe for concurrent use.
type Store struct {
	client redis.UniversalClient
	// people is the client for what people ask; see lanes.
	people redis.UniversalClient
	// cluster: the keys of one script must share a tag.
	cluster bool
	// at is what the URL says.
	at *location
	// grant is the script that grants, source its text.
	grant  *redis.Script
	source string
	// lines are where requests gather for the script that grants: one for each tag, or one.
	lines [tagCount]gather.Line[*portion]
	// called notes how many buckets a call of that script is about.
	called func(buckets int)
	// read is the script that reads one bucket.
	read *redis.Script
	// holders is the script that reads who holds permits of a bucket.
	holders *redis.Script
	log     *slog.Logger

	// fill is the share of its burst, in percent, with which a bucket starts whose state is lost.
	fill int64
	// lent is what nodes were answered about permits.
	lent leases.Lent
	// breakers are those of a cluster's servers, by address.
	breakers *breaker.Group
	// now is the clock by which far measures how far the servers are, and lent how old an answer
	// is; begun is when the store was opened.
	now   func() time.Time
	begun time.Time
	far   distances
	// other is why a store of another protocol is not used; nil while it is.
	other atomic.Pointer[errs.Error]
	// closing ends when the store is closed; looks are the checks in the background.
	closing context.Context
	close   context.CancelFunc
	looks   sync.WaitGroup
	laying  atomic.Bool

	mu        sync.Mutex
	known     bool // a secret has been seen, so its absence is a loss
	inspected bool
	// secretless is how many looks in a row found that the secret is lost.
	secretless int
	mayEvict   bool
	kept       map[byte]string // the run id of the process that keeps a tag's buckets
	looked     map[byte]looked // at the server with a tag
	servers    map[string]bool // the addresses of a cluster's primaries
}

// Option varies a store.
type Option func(*Store)

// LostFill sets the share of its burst, in percent, with which a bucket starts whose state is lost;
// leases.LostFill by default.
func LostFill(percent int64) Option { return func(s *Store) { s.fill = percent } }

// Breakers sets the breakers of a cluster's servers, by their addresses. Without them every server
// is always called.
func Breakers(g *breaker.Group) Option { return func(s *Store) { s.breakers = g } }

// Now sets the clock by which RoundTrip is measured and answers grow old, time.Time{} by default:
// then it is 0, and they do not.
func Now(now func() time.Time) Option { return func(s *Store) { s.now = now } }

// MayEvict accepts a Redis that may evict what cannot be lost.
func MayEvict(yes bool) Option { return func(s *Store) { s.mayEvict = yes } }

// Calls has a function called with the number of buckets in each call of the script that grants.
func Calls(note func(buckets int)) Option { return func(s *Store) { s.called = note } }

// Open makes a store from a URL:
//
//	redis://USER:PASSWORD@HOST:6379/0                                 one server
//	redis://HOST:6379?cluster=true&addr=HOST:PORT                     a Redis Cluster, of which the URL names some nodes
//	redis://HOST:26379/0?master_name=NAME&addr=HOST:PORT              what Sentinels say is the primary; the URL names the Sentinels
//	rediss://HOST:6379?ca_file=FILE&cert_file=FILE&key_file=FILE      with TLS, and a client certificate
//
// Several addr without a master_name mean a cluster. In all forms USER and PASSWORD are the Redis
// servers', and password_file takes the password from a file; sentinel_username and
// sentinel_password are the Sentinels'. Certificates must be for the host that is called, or for
// server_name. pool_size is how many connections there may be to one server, beside those for what
// people ask. If not given it is 10 for each processor; in a cluster 5, but at least 32.
//
// Open does not connect: each call notices whether Redis is away or back. Faults of the Redis
// itself are found by Inspect, or at the first call of Heads.
func Open(text string, log *slog.Logger, options ...Option) (*Store, error) {
	l, err := locate(text)
	if err != nil {
		return nil, err
	}
	l.log = log
	if l.options.MasterName != "" {
		l.sentinels = newSentinels(l.options, log)
		l.sentinels.dialer = l.dialer
	} else {
		l.names = newNames(log)
	}
	silenceOnce.Do(func() { redis.SetLogger(silence{}) })
	s := &Store{
		client: l.client(), people: l.forPeople(), cluster: l.cluster, at: l,
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
	for _, o := range options {
		o(s)
	}
	s.begun = s.now()
	s.client.AddHook(only{&s.other}) // Before the lanes: what people ask as well.
	s.client.AddHook(lanes{s.people})
	if l.sentinels != nil {
		l.sentinels.run(s.closing, func(f func()) { s.looks.Go(f) })
	} else {
		s.looks.Go(func() { every.Period(s.closing, namesEvery, l.names.follow) })
	}
	return s, nil
}

// silence is the Redis client's log: its failures are returned as errors.
type silence struct{}

// Printf drops the message.
func (silence) Printf(context.Context, string, ...any) {}

var silenceOnce sync.Once

func (s *Store) setGrant(source string) { s.grant, s.source = redis.NewScript(source), source }

// Close closes the connections. One that the server has closed before is no error.
func (s *Store) Close() error {
	s.close()
	s.looks.Wait()
	err := errors.Join(s.client.Close(), s.people.Close())
	if errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) {
		return nil
	}
	return err
}
