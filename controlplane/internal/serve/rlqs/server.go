package rlqs

import (
	"context"
	"errors"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/rate_limit_quota/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/weir-proxy/weir/shared/quota"
)

const (
	// maxBuckets bounds the buckets of all streams together, maxPerStream the buckets of a stream.
	// A bucket takes about a kilobyte.
	maxBuckets   = 100_000
	maxPerStream = 10_000
	// The bounds of a bucket's id.
	maxDomain  = 256
	maxEntries = 32
	maxKey     = 256
	maxValue   = 1024
	// maxReported is the largest number of requests that a report can claim for a bucket. Within
	// this bound no sum overflows.
	maxReported = 1 << 40
	// leastPause is the shortest pause between two turns. Buckets that become due in it share calls
	// of the store.
	leastPause = 5 * time.Millisecond
)

// MaxReport is the longest message of a filter: a report lists all its buckets.
const MaxReport = 4 << 20

// Meter counts the events at this door.
type Meter interface {
	// QuotaReported counts requests that filters reported as admitted and refused.
	QuotaReported(admitted, refused uint64)
	// QuotaAssigned counts the assignments sent to filters, by kind.
	QuotaAssigned(kind string)
	// QuotaIgnored counts buckets that were left alone, by reason.
	QuotaIgnored(reason string)
}

// The reasons to leave a bucket alone.
const (
	IgnoredFull    = "full"
	IgnoredInvalid = "invalid"
	IgnoredUnfit   = "unfit"
)

// Server serves filters. Make a Server with New, register it, and call Run.
type Server struct {
	pb.UnimplementedRateLimitQuotaServiceServer
	engine *Engine
	meter  Meter
	clock  func() time.Time
	start  time.Time
}

// New makes a Server.
func New(c Config) *Server {
	source := &ledgers{rules: rules{config: c}, leases: c.Leases}
	engine := NewEngine(source, Room{All: maxBuckets, Each: maxPerStream}, nil)
	return &Server{engine: engine, meter: c.Meter, clock: c.Now, start: c.Now()}
}

// Register adds s to the services of a gRPC server.
func (s *Server) Register(on grpc.ServiceRegistrar) { pb.RegisterRateLimitQuotaServiceServer(on, s) }

// Load returns the number of open streams, and the number of their buckets.
func (s *Server) Load() (streams, buckets int) { return s.engine.Filters(), s.engine.Holders() }

// now returns the time on a clock that never jumps.
func (s *Server) now() quota.Instant { return quota.Instant(s.clock().Sub(s.start).Microseconds()) + 1 }

// Run assigns the buckets that are due until ctx ends.
func (s *Server) Run(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
			s.engine.Turn(ctx, s.now)
		case <-s.engine.wake:
		}
		wait := leastPause
		if due := s.engine.Due(); due < quota.Forever {
			wait = max(wait, time.Duration(due-s.now())*time.Microsecond)
		} else {
			wait = time.Hour
		}
		timer.Reset(wait)
	}
}

// StreamRateLimitQuotas serves one filter.
func (s *Server) StreamRateLimitQuotas(stream pb.RateLimitQuotaService_StreamRateLimitQuotasServer) error {
	ctx, cancel := context.WithCancel(stream.Context())
	defer cancel()
	out := newOutbox()
	filter := s.engine.Join(out)
	defer s.engine.Leave(filter)
	received := make(chan error, 1)
	go func() { received <- s.receiveReports(stream, filter) }()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case err := <-received:
			return err
		case <-out.filled:
			if err := s.sendActions(stream, out.take()); err != nil {
				return err
			}
		}
	}
}

// receiveReports takes reports until the filter ends the stream.
func (s *Server) receiveReports(stream pb.RateLimitQuotaService_StreamRateLimitQuotasServer, filter uint64) error {
	domain := ""
	for {
		reports, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if reports.GetDomain() != "" {
			domain = reports.GetDomain()
		}
		if len(domain) > maxDomain {
			return status.Error(codes.InvalidArgument, "the domain is longer than "+strconv.Itoa(maxDomain)+" bytes")
		}
		s.takeReport(filter, domain, reports.GetBucketQuotaUsages())
	}
}

// takeReport takes the usage of a filter's buckets.
func (s *Server) takeReport(
	filter uint64, domain string, usages []*pb.RateLimitQuotaUsageReports_BucketQuotaUsage,
) {
	now := s.now()
	for _, usage := range usages {
		id, ok := idOf(domain, usage.GetBucketId().GetBucket())
		if !ok {
			s.meter.QuotaIgnored(IgnoredInvalid)
			continue
		}
		admitted := min(usage.GetNumRequestsAllowed(), maxReported)
		refused := min(usage.GetNumRequestsDenied(), maxReported)
		s.meter.QuotaReported(admitted, refused)
		if !s.engine.Report(now, filter, id, int64(admitted+refused)) {
			s.meter.QuotaIgnored(IgnoredFull)
		}
	}
}

// idOf returns the bucket with these entries; false if it is beyond a bound.
func idOf(domain string, entries map[string]string) (id ID, ok bool) {
	if len(entries) == 0 || len(entries) > maxEntries {
		return ID{}, false
	}
	keys := make([]string, 0, len(entries))
	for key, value := range entries {
		if len(key) > maxKey || len(value) > maxValue {
			return ID{}, false
		}
		keys = append(keys, key)
	}
	slices.Sort(keys)
	var name strings.Builder
	for _, text := range append([]string{domain}, keys...) {
		name.WriteString(strconv.Itoa(len(text)) + ":" + text)
	}
	for _, key := range keys {
		name.WriteString(strconv.Itoa(len(entries[key])) + ":" + entries[key])
	}
	return ID{Domain: domain, Entries: entries, Name: name.String()}, true
}

// sendActions sends the actions that are not too late.
func (s *Server) sendActions(stream pb.RateLimitQuotaService_StreamRateLimitQuotasServer, actions []Action) error {
	const perMessage = 500
	for len(actions) > 0 {
		some := actions[:min(len(actions), perMessage)]
		actions = actions[len(some):]
		response := &pb.RateLimitQuotaResponse{}
		for _, a := range some {
			if s.now() > a.By {
				s.meter.QuotaAssigned("late")
				continue
			}
			response.BucketAction = append(response.BucketAction, messagesFor(a)...)
			s.meter.QuotaAssigned(a.Kind.String())
		}
		if len(response.BucketAction) == 0 {
			continue
		}
		if err := stream.Send(response); err != nil {
			return err
		}
	}
	return nil
}

// String returns the kind's name in metrics.
func (k Kind) String() string { return [...]string{"tokens", "allow", "deny", "abandon"}[k] }
