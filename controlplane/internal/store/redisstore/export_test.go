package redisstore

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weir-proxy/weir/controlplane/internal/grant/leases"
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/quota"
)

func init() { dialTimeout, ioTimeout, poolTimeout = 20*time.Second, 20*time.Second, 20*time.Second }

// UseTestClock makes grants happen at the instant that set was given last; the script is the one in
// use but for its first lines.
func (s *Store) UseTestClock() (set func(quota.Instant)) {
	const clock = "local now = ARGV[#ARGV] + 0\n"
	s.setGrant(clock + grantScripts())
	s.read = redis.NewScript(clock + bucketScript)
	s.holders = redis.NewScript(clock + holdersScript)
	c := &testClock{sources: []any{
		s.source, s.grant.Hash(), clock + bucketScript, s.read.Hash(), clock + holdersScript, s.holders.Hash(),
	}}
	s.client.AddHook(c)
	s.begun = time.UnixMicro(0)
	s.now = func() time.Time { return time.UnixMicro(c.now.Load()) }
	return func(now quota.Instant) { c.now.Store(int64(now)) }
}

// testClock adds the time to the arguments of the scripts that use it. It knows these scripts by
// their texts and hashes.
type testClock struct {
	sources []any
	now     atomic.Int64
}

// DialHook changes nothing.
func (c *testClock) DialHook(next redis.DialHook) redis.DialHook { return next }

// ProcessPipelineHook changes nothing.
func (c *testClock) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// ProcessHook adds the time.
func (c *testClock) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, command redis.Cmder) error {
		args := command.Args()
		script, isScript := command.(*redis.Cmd)
		if o, ok := command.(once); ok {
			script, isScript = o.Cmd, true
		}
		if !isScript || len(args) < 2 || !slices.Contains(c.sources, args[1]) {
			return next(ctx, command)
		}
		timed := redis.NewCmd(ctx, append(args[:len(args):len(args)], c.now.Load())...)
		timed.SetFirstKeyPos(3)
		err := next(ctx, timed)
		script.SetVal(timed.Val())
		script.SetErr(timed.Err())
		return err
	}
}

// LayMarkers lays the markers of a deployment that has lost nothing.
func (s *Store) LayMarkers(ctx context.Context) error { return s.LayMarkersOf(ctx, 0) }

// LayMarkersOf lays the markers of a deployment that has lost its state at an instant.
func (s *Store) LayMarkersOf(ctx context.Context, lost quota.Instant) error {
	_, err := s.layMarkers(ctx, lost)
	return err
}

// Notice notes a process that keeps a tag's buckets, and returns 1 if state may have been lost.
func (s *Store) Notice(ctx context.Context, tag byte, id, living string) (lost int) {
	return s.noticeAll(ctx, &part{s.client, []byte{tag}}, id, living)
}

// Secret returns the secret in the heads.
func (s *Store) Secret(ctx context.Context, candidate [16]byte) ([16]byte, error) {
	h, err := s.Heads(ctx, candidate)
	return h.Secret, cmp.Or(err, h.NoSecret)
}

// Stays reports whether calls may still begin on a connection to addr after more looks at where its
// name leads than end one to a server that has moved.
func Stays(ctx context.Context, addr string, conn net.Conn) (bool, error) {
	n := newNames(slog.New(slog.DiscardHandler))
	dial := n.DialHook(func(context.Context, string, string) (net.Conn, error) { return conn, nil })
	named, err := dial(ctx, "tcp", addr)
	for range movedAfter + 1 {
		n.follow(ctx)
	}
	c, ok := named.(*namedConn)
	return ok && !c.left.Load(), err
}

// RememberLent bounds the claims of permits that are remembered.
func (s *Store) RememberLent(most int) { s.lent.Most = most }

// DoubtPermits notes when permits of a tag were lost.
func (s *Store) DoubtPermits(ctx context.Context, tag byte, lost string) error {
	return s.doubtPermits(ctx, &part{s.client, []byte{tag}}, lost, 0)
}

// Lacks returns when the store was found to lack one of some claims; "" if it has them all.
func (s *Store) Lacks(ctx context.Context, claims []leases.Claim) (string, error) {
	return s.findLost(ctx, &part{server: s.client}, claims)
}

// ClaimAgain makes all claims of permits again that were answered.
func (s *Store) ClaimAgain(ctx context.Context) {
	s.claimAgain(ctx, s.lent.Claims(s.age(), func(keyhash.Key) bool { return true }))
}

// Client is the connection, for tests that look at keys.
func (s *Store) Client() redis.UniversalClient { return s.client }

// KeyOf is the key of a bucket of tokens.
func KeyOf(bucket keyhash.Key) string { return bucketKey(bucket, false) }

// Tagged is the key of something that lies beside the buckets of a tag.
func Tagged(tag byte, name string) string { return taggedKey(tag, name) }

// ErrAway is the error of a server that is left alone.
var ErrAway = errAway

// SlowGrant lets the script that grants compute for some time before it does. In newer servers the
// command TIME shows one time throughout a script; older servers lack os.clock.
func (s *Store) SlowGrant(by time.Duration) {
	s.setGrant(fmt.Sprintf(`do
  local function time()
    local now = redis.call('TIME')
    return now[1] + now[2] / 1000000
  end
  local has, clock = pcall(function() return os.clock end)
  clock = has and clock or time
  local from = clock()
  repeat until clock() - from > %g
end
`, by.Seconds()) + clockScript + grantScripts())
}

// WhileCalling runs f while a call is under way for a tag. The requests that gather meanwhile leave
// at its end.
func (s *Store) WhileCalling(tag byte, f func()) {
	line := &s.lines[tag]
	under, end := make(chan struct{}), make(chan struct{})
	line.Init(fullCall, time.Hour, func(ctx context.Context, portions []*portion) error {
		if portions[0] != nil {
			return s.callTogether(ctx, portions)
		}
		close(under)
		<-end
		return nil
	})
	go func() { _ = line.Do(context.Background(), nil, 0) }() // It has no error.
	<-under
	f()
	close(end)
}

// Gathered is how many requests about a tag wait for the next call.
func (s *Store) Gathered(tag byte) int { return s.lines[tag].Waiting() }

// BucketKey is where the tokens of a bucket are.
func BucketKey(bucket keyhash.Key) string { return bucketKey(bucket, false) }
