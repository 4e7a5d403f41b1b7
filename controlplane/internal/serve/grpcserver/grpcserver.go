// Package grpcserver is a listener that speaks gRPC. It gives every service TLS, tokens, bounds,
// health, reflection, metrics and traces. It knows none of the services.
package grpcserver

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/reflection"

	"github.com/weir-proxy/weir/controlplane/internal/access"
	"github.com/weir-proxy/weir/controlplane/internal/access/auth"
	"github.com/weir-proxy/weir/controlplane/internal/access/certs"
	"github.com/weir-proxy/weir/controlplane/internal/observe/metrics"
	"github.com/weir-proxy/weir/controlplane/internal/observe/tracing"
)

// The bounds of a connection and of its calls.
const (
	// maxMessage is the longest message that a caller may send, maxHeaders the longest metadata.
	maxMessage = 64 << 10
	maxHeaders = 16 << 10
	// streamWindow and connectionWindow are the numbers of bytes that a caller may send on a call
	// and in all before the server has read them. They are fixed: to find better ones gRPC would
	// send a probe with each burst of calls, which costs more than the small messages gain.
	streamWindow     = 2 * maxMessage
	connectionWindow = 1 << 20
	// maxStreams is the largest number of open calls on one connection. A proxy queues further
	// calls.
	maxStreams = 1024
	// streamWorkers is the number of goroutines that serve calls and stay, since a new one grows
	// its stack each time. Calls that find none free get goroutines of their own.
	streamWorkers = 64
	// handshakeTime bounds the opening of a connection, TLS included.
	handshakeTime = 5 * time.Second
	// idleTime is the time for which a connection without a call stays open.
	idleTime = 5 * time.Minute
	// probeAfter and probeTime find connections whose other end has gone without a word; callers
	// may probe as often as probeLeast.
	probeAfter = 30 * time.Second
	probeTime  = 10 * time.Second
	probeLeast = 5 * time.Second
	// maxSources bounds how many callers have a rate of their own.
	maxSources = 10_000
)

// Config holds the settings and the services of a Server. Fields must be set unless they say
// otherwise.
type Config struct {
	// Name is the listener's name in the log and in metrics. Address is host:port; with port 0 the
	// system chooses a free port.
	Name, Address string
	// TLS is the certificate to show, nil without TLS. Clients, if not nil, must have issued the
	// callers' certificates.
	TLS     *certs.Pair
	Clients *certs.Pool
	// Tokens are the valid tokens: each call must show a token with the role node. nil serves every
	// caller that reaches the address. Health needs no token.
	Tokens *auth.Ring
	// Refused, if not nil, is called for each caller whose token is refused, with its address and
	// the reason.
	Refused func(address, reason string)
	// Rate is the number of calls a second that one source may make, with a burst of twice the
	// rate; 0 for no limit.
	Rate int64
	// Connections bounds the open connections, 0 for no bound. AtOnce bounds the unary calls that
	// are being answered, Streams the streams that are open.
	Connections, AtOnce, Streams int
	// Message is the longest message that a caller may send; 0 is 64 KiB.
	Message int
	// Probe is after how long without a word the other end of a connection is asked for a sign of
	// life, and how long that may take; 0 is 30 s, and 10 s for the sign.
	Probe time.Duration
	// Patience is the longest time of a unary call, 0 for no bound but the service's own. A caller
	// may wish for less, never for more.
	Patience time.Duration
	Metrics  *metrics.Metrics
	// Tracing may be nil.
	Tracing *tracing.Tracing
	Log     *slog.Logger
	Now     func() time.Time
}

// Server serves the services that are registered with it. Make a Server with New; Close it in any
// case.
type Server struct {
	config  Config
	socket  net.Listener
	server  *grpc.Server
	health  *health.Server
	rate    *access.Rates
	calls   access.Places
	streams access.Places
	// ending ends when open streams are to end.
	ending context.Context
	end    context.CancelFunc
}

// New opens the listener. Nothing is served before Serve.
func New(c Config) (*Server, error) {
	s := &Server{
		config: c, health: health.NewServer(),
		calls: access.NewPlaces(c.AtOnce), streams: access.NewPlaces(c.Streams),
	}
	if c.Rate > 0 {
		var err error
		s.rate, err = access.NewRates(c.Rate, 2*c.Rate, maxSources, c.Now)
		if err != nil {
			return nil, err
		}
	}
	socket, err := net.Listen("tcp", c.Address)
	if err != nil {
		return nil, err
	}
	bounded := access.NewListener(socket, c.Connections, c.Now, func(address string) {
		c.Log.Warn("the maximum of connections is reached: "+
			"each new connection closes the oldest connection without a valid token, or waits",
			"for", c.Name, "bound", c.Connections, "most_from", address)
	})
	c.Metrics.Connections(c.Name, bounded.Counts)
	s.socket = bounded
	s.ending, s.end = context.WithCancel(context.Background())
	s.server = grpc.NewServer(s.options()...)
	healthpb.RegisterHealthServer(s.server, s.health)
	reflection.Register(s.server)
	return s, nil
}

func (s *Server) options() []grpc.ServerOption {
	message, probe, sign := maxMessage, probeAfter, probeTime
	if s.config.Message > 0 {
		message = s.config.Message
	}
	if s.config.Probe > 0 {
		probe, sign = s.config.Probe, s.config.Probe
	}
	transport := insecure.NewCredentials()
	if s.config.TLS != nil {
		transport = credentials.NewTLS(certs.Server(certs.HTTP2, s.config.TLS, s.config.Clients, s.config.Log))
	}
	return []grpc.ServerOption{
		grpc.Creds(remembering{transport}), grpc.NumStreamWorkers(streamWorkers),
		grpc.ConnectionTimeout(handshakeTime),
		grpc.StaticStreamWindowSize(streamWindow), grpc.StaticConnWindowSize(connectionWindow),
		grpc.MaxRecvMsgSize(message), grpc.MaxHeaderListSize(maxHeaders), grpc.MaxConcurrentStreams(maxStreams),
		grpc.KeepaliveParams(keepalive.ServerParameters{
			MaxConnectionIdle: idleTime, Time: probe, Timeout: sign,
		}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: probeLeast, PermitWithoutStream: true}),
		grpc.UnaryInterceptor(s.answerUnary), grpc.StreamInterceptor(s.serveStream),
	}
}

// RegisterService implements grpc.ServiceRegistrar. Health says that the service is served.
func (s *Server) RegisterService(what *grpc.ServiceDesc, by any) {
	s.server.RegisterService(what, by)
	s.health.SetServingStatus(what.ServiceName, healthpb.HealthCheckResponse_SERVING)
}

// Addr returns the address where the server listens.
func (s *Server) Addr() net.Addr { return s.socket.Addr() }

// Name returns the listener's name in the log.
func (s *Server) Name() string { return s.config.Name }

// TLS reports whether the server speaks TLS.
func (s *Server) TLS() bool { return s.config.TLS != nil }

// Serve serves until the server is closed.
func (s *Server) Serve() error { return s.server.Serve(s.socket) }

// Leave has health say that nothing is served here any more. All is served on.
func (s *Server) Leave() { s.health.Shutdown() }

// Shutdown ends streams, lets calls in flight finish, and closes the server; at once when ctx ends.
func (s *Server) Shutdown(ctx context.Context) error {
	s.health.Shutdown()
	s.end()
	finished := make(chan struct{})
	go func() {
		s.server.GracefulStop()
		close(finished)
	}()
	select {
	case <-finished:
		return nil
	case <-ctx.Done():
		s.server.Stop()
		<-finished
		return ctx.Err()
	}
}

// Close ends the server at once.
func (s *Server) Close() error {
	s.end()
	s.server.Stop()
	if err := s.socket.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
		return err
	}
	return nil
}
