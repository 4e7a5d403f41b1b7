package grpcserver_test

import (
	"context"
	"crypto/tls"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	reflectionpb "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/weir-proxy/weir/controlplane/internal/access/auth"
	"github.com/weir-proxy/weir/controlplane/internal/access/certs"
	"github.com/weir-proxy/weir/controlplane/internal/ground/errs"
	"github.com/weir-proxy/weir/controlplane/internal/observe/metrics"
	"github.com/weir-proxy/weir/controlplane/internal/serve/grpcserver"
	"github.com/weir-proxy/weir/test/support/certtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	nodeSecret   = "the-secret-of-the-nodes"
	viewerSecret = "the-secret-of-a-viewer"
	call         = "/test.Test/Call"
	watch        = "/test.Test/Watch"
)

// described is a service with a call and a stream, which do as the test says.
var described = grpc.ServiceDesc{
	ServiceName: "test.Test", HandlerType: (*any)(nil),
	Methods: []grpc.MethodDesc{{MethodName: "Call", Handler: func(
		by any, ctx context.Context, decode func(any) error, intercept grpc.UnaryServerInterceptor,
	) (any, error) {
		in := &wrapperspb.StringValue{}
		if err := decode(in); err != nil {
			return nil, err
		}
		return intercept(ctx, in, &grpc.UnaryServerInfo{Server: by, FullMethod: call},
			func(ctx context.Context, in any) (any, error) {
				return in, by.(*world).do(ctx)
			})
	}}},
	Streams: []grpc.StreamDesc{{StreamName: "Watch", ServerStreams: true,
		Handler: func(by any, stream grpc.ServerStream) error {
			return by.(*world).do(stream.Context())
		}}},
}

// world is a server and who calls it.
type world struct {
	t       *testing.T
	server  *grpcserver.Server
	metrics *metrics.Metrics
	client  *grpc.ClientConn
	do      func(ctx context.Context) error
}

func start(t *testing.T, change func(*grpcserver.Config)) *world {
	t.Helper()
	w := &world{t: t, metrics: metrics.New("test"), do: func(context.Context) error { return nil }}
	c := grpcserver.Config{
		Name: "rls", Address: "127.0.0.1:0", Patience: 10 * time.Second, AtOnce: 100, Streams: 100, Metrics: w.metrics,
		Tokens: auth.NewRing(auth.Tokens{
			{Name: "node", Role: auth.Node, Sum: auth.Sum(nodeSecret)},
			{Name: "viewer", Role: auth.Viewer, Sum: auth.Sum(viewerSecret)},
		}, time.Now),
		Log: slog.New(slog.DiscardHandler), Now: time.Now,
	}
	change(&c)
	var err error
	w.server, err = grpcserver.New(c)
	if err != nil {
		t.Fatal(err)
	}
	w.server.RegisterService(&described, w)
	served := make(chan error, 1)
	go func() { served <- w.server.Serve() }()
	t.Cleanup(func() {
		if err := w.server.Close(); err != nil {
			t.Error(err)
		}
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	w.dial(insecure.NewCredentials())
	return w
}

// dial has the later calls made with other credentials.
func (w *world) dial(by credentials.TransportCredentials, options ...grpc.DialOption) {
	w.t.Helper()
	client, err := grpc.NewClient(w.server.Addr().String(), append(options, grpc.WithTransportCredentials(by))...)
	if err != nil {
		w.t.Fatal(err)
	}
	w.client = client
	w.t.Cleanup(func() { client.Close() })
}

func bearer(ctx context.Context, secret string) context.Context {
	return metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+secret)
}

func (w *world) call(ctx context.Context, text string) codes.Code {
	return status.Code(w.client.Invoke(ctx, call, wrapperspb.String(text), &wrapperspb.StringValue{}))
}

func (w *world) health(service string) healthpb.HealthCheckResponse_ServingStatus {
	w.t.Helper()
	answer, err := healthpb.NewHealthClient(w.client).Check(w.t.Context(),
		&healthpb.HealthCheckRequest{Service: service})
	if err != nil {
		w.t.Fatal("health:", err)
	}
	return answer.Status
}

// counted returns the metrics of the calls of a method.
func (w *world) counted() string {
	recorder := httptest.NewRecorder()
	w.metrics.Handler().ServeHTTP(recorder, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	var lines []string
	for line := range strings.Lines(recorder.Body.String()) {
		if strings.HasPrefix(line, "weir_grpc_request_seconds_count") ||
			strings.HasPrefix(line, "weir_auth_failures") ||
			strings.HasPrefix(line, "weir_throttled") {
			lines = append(lines, strings.TrimSpace(line))
		}
	}
	return strings.Join(lines, "\n")
}

// A call needs a token of the role node; health needs none.
func TestTokens(t *testing.T) {
	w := start(t, func(*grpcserver.Config) {})
	for _, c := range []struct {
		name string
		ctx  context.Context
		want codes.Code
	}{
		{"a node's token", bearer(t.Context(), nodeSecret), codes.OK},
		{"no token", t.Context(), codes.Unauthenticated},
		{"an unknown one", bearer(t.Context(), "of-nothing-that-is-known"), codes.Unauthenticated},
		{"another scheme", metadata.AppendToOutgoingContext(t.Context(), "authorization", "Basic "+nodeSecret),
			codes.Unauthenticated},
		{"a viewer's", bearer(t.Context(), viewerSecret), codes.PermissionDenied},
	} {
		if got := w.call(c.ctx, "x"); got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
	for service, want := range map[string]healthpb.HealthCheckResponse_ServingStatus{
		"": healthpb.HealthCheckResponse_SERVING, "test.Test": healthpb.HealthCheckResponse_SERVING,
	} {
		if got := w.health(service); got != want {
			t.Errorf("health of %q: %s, want %s", service, got, want)
		}
	}
	const want = `weir_auth_failures_total{reason="unknown"} 3
weir_grpc_request_seconds_count{code="OK",method="/grpc.health.v1.Health/Check"} 2
weir_grpc_request_seconds_count{code="OK",method="/test.Test/Call"} 1
weir_grpc_request_seconds_count{code="PermissionDenied",method="/test.Test/Call"} 1
weir_grpc_request_seconds_count{code="Unauthenticated",method="/test.Test/Call"} 3`
	if got := w.counted(); got != want {
		t.Errorf("counted\n%s\nwant\n%s", got, want)
	}
}

// Where the network is trusted no token is needed.
func TestWithoutTokens(t *testing.T) {
	w := start(t, func(c *grpcserver.Config) { c.Tokens = nil })
	if got := w.call(t.Context(), "x"); got != codes.OK {
		t.Errorf("without a token: %s", got)
	}
}

// An error or a panic of a handler becomes a status that says whose fault it is.
func TestErrors(t *testing.T) {
	w := start(t, func(c *grpcserver.Config) { c.Patience = 20 * time.Millisecond })
	for _, c := range []struct {
		name string
		do   func(context.Context) error
		want codes.Code
	}{
		{"a status", func(context.Context) error { return status.Error(codes.InvalidArgument, "no domain") },
			codes.InvalidArgument},
		{"the store", func(context.Context) error { return errs.New(errs.StoreUnavailable, "away", "") },
			codes.Unavailable},
		{"the caller's", func(context.Context) error { return errs.New(errs.BadRequest, "bad", "") },
			codes.InvalidArgument},
		{"too many", func(context.Context) error { return errs.New(errs.TooManyRequests, "many", "") },
			codes.ResourceExhausted},
		{"any other", func(context.Context) error { return io.ErrUnexpectedEOF }, codes.Internal},
		{"a panic", func(context.Context) error { panic("at the disco") }, codes.Internal},
		{"for too long", func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }, codes.DeadlineExceeded},
	} {
		w.do = c.do
		if got := w.call(bearer(t.Context(), nodeSecret), "x"); got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
}

// Bounds hold: of the message, of the calls at once, of the open streams, of the rate of a source.
func TestBounds(t *testing.T) {
	stands := time.Now()
	w := start(t, func(c *grpcserver.Config) {
		c.AtOnce, c.Streams, c.Rate = 1, 1, 4
		c.Now = func() time.Time { return stands }
	})
	ctx := bearer(t.Context(), nodeSecret)
	if got := w.call(ctx, strings.Repeat("x", 65<<10)); got != codes.ResourceExhausted {
		t.Errorf("a long message: %s", got)
	}
	entered, leave := make(chan struct{}), make(chan struct{})
	w.do = func(context.Context) error { entered <- struct{}{}; <-leave; return nil }
	first := make(chan codes.Code)
	go func() { first <- w.call(ctx, "x") }()
	<-entered
	if got := w.call(ctx, "x"); got != codes.ResourceExhausted {
		t.Errorf("a second call at once: %s", got)
	}
	close(leave)
	if got := <-first; got != codes.OK {
		t.Errorf("the first call: %s", got)
	}
	w.do = func(ctx context.Context) error { entered <- struct{}{}; <-ctx.Done(); return ctx.Err() }
	open, cancel := context.WithCancel(ctx)
	defer cancel()
	if _, err := w.client.NewStream(open, &described.Streams[0], watch); err != nil {
		t.Fatal(err)
	}
	<-entered
	second, err := w.client.NewStream(ctx, &described.Streams[0], watch)
	if err == nil {
		err = second.RecvMsg(&wrapperspb.StringValue{})
	}
	if status.Code(err) != codes.ResourceExhausted {
		t.Errorf("a second stream: %v", err)
	}
	w.do = func(context.Context) error { return nil }
	for range 4 { // Four of the eight are used: the long message was none.
		if got := w.call(ctx, "x"); got != codes.OK {
			t.Fatalf("within the rate: %s", got)
		}
	}
	if got := w.call(ctx, "x"); got != codes.ResourceExhausted {
		t.Errorf("beyond the rate: %s", got)
	}
}

// While the server drains, health says that nothing is served, and all is. At the end a call in
// flight finishes, and a stream is sent elsewhere.
func TestTheEnd(t *testing.T) {
	w := start(t, func(*grpcserver.Config) {})
	ctx := bearer(t.Context(), nodeSecret)
	w.server.Leave()
	if got := w.health("test.Test"); got != healthpb.HealthCheckResponse_NOT_SERVING {
		t.Errorf("health while draining: %s", got)
	}
	if got := w.call(ctx, "x"); got != codes.OK {
		t.Errorf("a call while draining: %s", got)
	}
	entered, leave := make(chan struct{}), make(chan struct{})
	w.do = func(ctx context.Context) error { entered <- struct{}{}; <-ctx.Done(); return ctx.Err() }
	stream, err := w.client.NewStream(ctx, &described.Streams[0], watch)
	if err != nil {
		t.Fatal(err)
	}
	<-entered
	w.do = func(context.Context) error { entered <- struct{}{}; <-leave; return nil }
	called := make(chan codes.Code)
	go func() { called <- w.call(ctx, "x") }()
	<-entered
	ended := make(chan error)
	go func() { ended <- w.server.Shutdown(t.Context()) }()
	if err := stream.RecvMsg(&wrapperspb.StringValue{}); status.Code(err) != codes.Unavailable {
		t.Errorf("the stream ended with %v", err)
	}
	close(leave)
	if got := <-called; got != codes.OK {
		t.Errorf("the call in flight: %s", got)
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// The end does not wait for a call that does not end.
func TestTheEndAtOnce(t *testing.T) {
	w := start(t, func(*grpcserver.Config) {})
	entered := make(chan struct{})
	w.do = func(ctx context.Context) error { entered <- struct{}{}; <-ctx.Done(); return ctx.Err() }
	go w.call(bearer(t.Context(), nodeSecret), "x")
	<-entered
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := w.server.Shutdown(ctx); err == nil {
		t.Error("the end was orderly")
	}
}

// A caller needs a certificate of the right authority, beside the token.
func TestCertificates(t *testing.T) {
	ours, others := certtest.New(t, "ours"), certtest.New(t, "others")
	files := ours.Issue(t.TempDir(), "weir")
	w := start(t, func(c *grpcserver.Config) {
		var err error
		if c.TLS, err = certs.Load(files.Cert, files.Key); err != nil {
			t.Fatal(err)
		}
		if c.Clients, err = certs.LoadPool(ours.Path); err != nil {
			t.Fatal(err)
		}
	})
	ctx := bearer(t.Context(), nodeSecret)
	for name, c := range map[string]struct {
		config *tls.Config
		want   codes.Code
	}{
		"ours":    {ours.Client(ours.Issue(t.TempDir(), "envoy")), codes.OK},
		"others'": {ours.Client(others.Issue(t.TempDir(), "envoy")), codes.Unavailable},
		"none":    {ours.Client(), codes.Unavailable},
	} {
		w.dial(credentials.NewTLS(c.config))
		if got := w.call(ctx, "x"); got != c.want {
			t.Errorf("with a certificate of %s: %s, want %s", name, got, c.want)
		}
	}
	w.dial(credentials.NewTLS(ours.Client(ours.Issue(t.TempDir(), "envoy"))))
	if got := w.call(t.Context(), "x"); got != codes.Unauthenticated {
		t.Errorf("with a certificate alone: %s", got)
	}
}

// Taking an authority out of the file ends calls and messages on connections that are open.
func TestARemovedAuthorityIsOutAtOnce(t *testing.T) {
	ours, others := certtest.New(t, "ours"), certtest.New(t, "others")
	files, log := ours.Issue(t.TempDir(), "weir"), slog.New(slog.DiscardHandler)
	text, err := os.ReadFile(ours.Path)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "clients.pem")
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	pool, err := certs.LoadPool(file)
	if err != nil {
		t.Fatal(err)
	}
	w := start(t, func(c *grpcserver.Config) {
		if c.TLS, err = certs.Load(files.Cert, files.Key); err != nil {
			t.Fatal(err)
		}
		c.Clients = pool
	})
	ctx := bearer(t.Context(), nodeSecret)
	w.dial(credentials.NewTLS(ours.Client(ours.Issue(t.TempDir(), "envoy"))))
	stream, err := reflectionpb.NewServerReflectionClient(w.client).ServerReflectionInfo(ctx)
	if err != nil {
		t.Fatal(err)
	}
	ask := &reflectionpb.ServerReflectionRequest{MessageRequest: &reflectionpb.ServerReflectionRequest_ListServices{}}
	exchange := func() error {
		if err := stream.Send(ask); err != nil {
			return err
		}
		_, err := stream.Recv()
		return err
	}
	if got, err := w.call(ctx, "x"), exchange(); got != codes.OK || err != nil {
		t.Fatalf("before: %s, %v", got, err)
	}
	if text, err = os.ReadFile(others.Path); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	if trouble := pool.Trouble(log); trouble != "" {
		t.Fatal(trouble)
	}
	if got := w.call(ctx, "x"); got != codes.Unauthenticated {
		t.Errorf("a call over the connection that is open: %s", got)
	}
	if err := exchange(); status.Code(err) != codes.Unauthenticated {
		t.Errorf("a message of the stream that is open: %v", err)
	}
}

// Reflection names the services.
func TestReflection(t *testing.T) {
	w := start(t, func(*grpcserver.Config) {})
	stream, err := reflectionpb.NewServerReflectionClient(w.client).ServerReflectionInfo(bearer(t.Context(),
		nodeSecret))
	if err != nil {
		t.Fatal(err)
	}
	ask := &reflectionpb.ServerReflectionRequest{MessageRequest: &reflectionpb.ServerReflectionRequest_ListServices{}}
	if err := stream.Send(ask); err != nil {
		t.Fatal(err)
	}
	answer, err := stream.Recv()
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, service := range answer.GetListServicesResponse().GetService() {
		names = append(names, service.Name)
	}
	if !slices.Contains(names, "test.Test") || !slices.Contains(names, "grpc.health.v1.Health") {
		t.Errorf("served are %q", names)
	}
	if err := stream.CloseSend(); err != nil {
		t.Error(err)
	}
	if _, err := stream.Recv(); err != io.EOF {
		t.Error(err)
	}
}
