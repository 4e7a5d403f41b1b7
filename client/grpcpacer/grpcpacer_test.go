package grpcpacer_test

import (
	"context"
	"net"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	"github.com/weir-proxy/weir/client"
	"github.com/weir-proxy/weir/client/grpcpacer"
)

// server refuses its first calls.
type server struct {
	grpc_health_v1.UnimplementedHealthServer
	refuse  int64       // the number of calls that it refuses
	trailer metadata.MD // the trailer of each refusal
	calls   atomic.Int64
}

func (s *server) Check(
	ctx context.Context, _ *grpc_health_v1.HealthCheckRequest,
) (*grpc_health_v1.HealthCheckResponse, error) {
	if s.calls.Add(1) <= s.refuse {
		if err := grpc.SetTrailer(ctx, s.trailer); err != nil {
			return nil, err
		}
		return nil, status.Error(codes.ResourceExhausted, "refused")
	}
	return &grpc_health_v1.HealthCheckResponse{}, nil
}

func TestRefusedCallsAreRepeated(t *testing.T) {
	always := func(string) bool { return true }
	for _, c := range []struct {
		name       string
		refuse     int64
		trailer    metadata.MD
		repeatable func(string) bool
		options    client.Options
		calls      int64
		code       codes.Code
	}{
		{"not refused", 0, nil, nil, client.Options{}, 1, codes.OK},
		{"refused once", 1, metadata.Pairs("retry-after", "0.01"), always, client.Options{}, 2, codes.OK},
		{"refused by its limit", 1, metadata.Pairs("ratelimit", `"p";r=0;t=0.01`), always, client.Options{}, 2, codes.OK},
		{"refused too often", 9, metadata.Pairs("retry-after", "0.01"), always, client.Options{Retries: 3}, 4,
			codes.ResourceExhausted},
		{"not to be repeated", 1, metadata.Pairs("retry-after", "0.01"), nil, client.Options{}, 1,
			codes.ResourceExhausted},
		{"for too long", 1, metadata.Pairs("retry-after", "3600"), always, client.Options{}, 1,
			codes.ResourceExhausted},
		{"a large message is no refusal", 1, nil, always, client.Options{}, 1, codes.ResourceExhausted},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.options.Spread = -1
			s := &server{refuse: c.refuse, trailer: c.trailer}
			err := check(t, s, grpcpacer.Unary(client.NewPacer(c.options), c.repeatable), 1)
			if status.Code(err) != c.code || s.calls.Load() != c.calls {
				t.Errorf("%v after %d calls, want %s after %d", err, s.calls.Load(), c.code, c.calls)
			}
		})
	}
}

// While a long refusal holds, further calls are not sent.
func TestACallThatIsHeldIsNotSent(t *testing.T) {
	s := &server{refuse: 1, trailer: metadata.Pairs("retry-after", "3600")}
	err := check(t, s, grpcpacer.Unary(client.NewPacer(client.Options{}), nil), 2)
	if status.Code(err) != codes.ResourceExhausted || s.calls.Load() != 1 {
		t.Errorf("%v after %d calls", err, s.calls.Load())
	}
}

// check calls a server several times and returns the last error.
func check(t *testing.T, s *server, interceptor grpc.UnaryClientInterceptor, times int) error {
	t.Helper()
	listener := bufconn.Listen(1 << 16)
	g := grpc.NewServer()
	grpc_health_v1.RegisterHealthServer(g, s)
	go func() { _ = g.Serve(listener) }()
	t.Cleanup(g.Stop)
	cc, err := grpc.NewClient("passthrough:///server", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) { return listener.Dial() }),
		grpc.WithUnaryInterceptor(interceptor))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cc.Close() })
	for range times {
		_, err = grpc_health_v1.NewHealthClient(cc).Check(t.Context(), &grpc_health_v1.HealthCheckRequest{})
	}
	return err
}
