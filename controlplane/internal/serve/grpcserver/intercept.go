package grpcserver

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/weir-proxy/weir/controlplane/internal/access"
	"github.com/weir-proxy/weir/controlplane/internal/access/auth"
	"github.com/weir-proxy/weir/controlplane/internal/access/certs"
	"github.com/weir-proxy/weir/controlplane/internal/ground/errs"
	"github.com/weir-proxy/weir/controlplane/internal/observe/metrics"
	"github.com/weir-proxy/weir/controlplane/internal/observe/tracing"
)

// openPrefix begins the methods that need no token. Like /healthz and /readyz, health tells nothing
// that a token must protect.
const openPrefix = "/grpc.health.v1.Health/"

// answerUnary answers a unary call.
func (s *Server) answerUnary(
	ctx context.Context, request any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler,
) (answer any, err error) {
	o := s.observeCall(ctx, info.FullMethod)
	defer func() { err = o.endCall(err, recover()) }()
	if err := s.admitCall(ctx, info.FullMethod); err != nil {
		return nil, err
	}
	if !s.calls.Take() {
		s.config.Metrics.Throttled(metrics.BoundTurns)
		return nil, status.Error(codes.ResourceExhausted, "too many calls: the maximum of concurrent calls is reached")
	}
	defer s.calls.Leave()
	if s.config.Patience == 0 {
		return handle(o.ctx, request)
	}
	ctx, cancel := context.WithTimeout(o.ctx, s.config.Patience)
	defer cancel()
	return handle(ctx, request)
}

// serveStream serves a stream.
func (s *Server) serveStream(
	by any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handle grpc.StreamHandler,
) (err error) {
	o := s.observeCall(stream.Context(), info.FullMethod)
	defer func() { err = o.endCall(err, recover()) }()
	if err := s.admitCall(stream.Context(), info.FullMethod); err != nil {
		return err
	}
	if !s.streams.Take() {
		s.config.Metrics.Throttled(metrics.BoundTurns)
		return status.Error(codes.ResourceExhausted, "too many streams: the maximum of open streams is reached")
	}
	defer s.streams.Leave()
	ctx, cancel := context.WithCancel(o.ctx)
	defer cancel()
	defer context.AfterFunc(s.ending, cancel)()
	err = handle(by, endingStream{stream, ctx, s.stillAdmits})
	if s.ending.Err() != nil && (errors.Is(err, context.Canceled) || status.Code(err) == codes.Canceled) {
		return status.Error(codes.Unavailable, "this replica of the control plane ends")
	}
	return err
}

// endingStream is a stream whose context ends with the server too.
type endingStream struct {
	grpc.ServerStream
	ctx context.Context
	// admits reports whether the caller could open a connection now.
	admits func(context.Context) bool
}

// RecvMsg implements grpc.ServerStream. A stream can be open for months, and the authority of its
// caller's certificate be taken out of the file meanwhile.
func (e endingStream) RecvMsg(m any) error {
	err := e.ServerStream.RecvMsg(m)
	if err == nil && !e.admits(e.ctx) {
		return status.Error(codes.Unauthenticated, certs.Removed)
	}
	return err
}

// Context implements grpc.ServerStream.
func (e endingStream) Context() context.Context { return e.ctx }

// observed is a call that is counted and traced.
type observed struct {
	server *Server
	ctx    context.Context
	span   tracing.Span
	method string
	start  time.Time
}

func (s *Server) observeCall(ctx context.Context, method string) observed {
	o := observed{server: s, method: method, start: s.config.Now()}
	o.ctx, o.span = s.config.Tracing.Call(ctx, method, func(name string) string { return headerOf(ctx, name) })
	return o
}

// endCall counts the call and returns the error for the caller. panicked is the recovered value;
// nil without a panic.
func (o *observed) endCall(err error, panicked any) error {
	log := o.server.config.Log
	if panicked != nil {
		log.Error("panic", "method", o.method, "value", fmt.Sprint(panicked), "stack", string(debug.Stack()))
		err = status.Error(codes.Internal, "the control plane has failed; its log says more")
	}
	err = shownError(err)
	code := status.Code(err)
	fault := code == codes.Internal || code == codes.Unknown || code == codes.DataLoss
	if fault && panicked == nil {
		log.Error("call failed", "method", o.method, "error", err.Error())
	}
	took := o.server.config.Now().Sub(o.start)
	o.server.config.Metrics.Call(o.method, code.String(), took)
	o.span.EndCall(int(code), fault)
	if log.Enabled(o.ctx, slog.LevelDebug) {
		log.Debug("call", "method", o.method, "code", code.String(), "micros", took.Microseconds())
	}
	return err
}

// shownError returns an error in the form that callers see: a status. The code of an error that is
// not a status follows from its kind.
func shownError(err error) error {
	if err == nil {
		return nil
	}
	if _, ok := status.FromError(err); ok {
		return err
	}
	code, detail, known := errs.CodeOf(err)
	if detail == "" {
		detail = err.Error()
	}
	switch {
	case errors.Is(err, context.Canceled):
		return status.Error(codes.Canceled, "the caller went away")
	case known && (code == errs.StoreUnavailable || code == errs.Stopping):
		return status.Error(codes.Unavailable, detail)
	case errors.Is(err, context.DeadlineExceeded):
		return status.Error(codes.DeadlineExceeded, "the call took too long")
	case known && code == errs.TooManyRequests:
		return status.Error(codes.ResourceExhausted, detail)
	case known && code == errs.BadRequest:
		return status.Error(codes.InvalidArgument, detail)
	}
	return status.Error(codes.Internal, detail)
}

// admitCall reports, as an error, that the caller may not make this call, or not now.
func (s *Server) admitCall(ctx context.Context, method string) error {
	if !s.stillAdmits(ctx) {
		return status.Error(codes.Unauthenticated, certs.Removed)
	}
	who, token := callerOf(ctx), ""
	if s.config.Tokens == nil {
		access.MarkKnownConn(who.conn)
	} else if !strings.HasPrefix(method, openPrefix) {
		var err error
		token, err = s.authorize(ctx, who)
		if err != nil {
			return err
		}
	}
	if s.rate == nil {
		return nil
	}
	if wait, ok := s.rate.Take(who.source(token)); !ok {
		s.config.Metrics.Throttled(metrics.BoundNode)
		return status.Errorf(codes.ResourceExhausted, "too many calls came from this caller; try again in %s", wait)
	}
	return nil
}

// stillAdmits reports whether the authority of the caller's certificate is still in the file; true
// where callers need none.
func (s *Server) stillAdmits(ctx context.Context) bool {
	return s.config.TLS == nil || s.config.Clients == nil || s.config.Clients.Admits(callerOf(ctx).chain)
}

// authorize finds the caller's token, which must have the role node, and returns its name.
func (s *Server) authorize(ctx context.Context, who caller) (string, error) {
	scheme, secret, _ := strings.Cut(headerOf(ctx, "authorization"), " ")
	token, err := s.config.Tokens.Find(strings.TrimSpace(secret))
	switch {
	case !strings.EqualFold(scheme, "bearer"), errors.Is(err, auth.ErrUnknown):
		s.config.Metrics.AuthFailure(metrics.AuthUnknown)
		why := "its token is unknown to the gRPC listener"
		if secret == "" {
			why = "it shows no token to the gRPC listener"
		}
		s.noteRefused(who, why)
		return "", status.Error(codes.Unauthenticated,
			"send a token that this control plane knows as metadata: authorization: Bearer TOKEN")
	case errors.Is(err, auth.ErrExpired):
		s.config.Metrics.AuthFailure(metrics.AuthExpired)
		s.noteRefused(who, "the token "+token.Name+" has expired")
		return "", status.Errorf(codes.Unauthenticated,
			"the token %s has expired: weir token new makes a new token", token.Name)
	case !token.Role.May(auth.Node):
		s.noteRefused(who, fmt.Sprintf("the token %s has the role %s, and not %s", token.Name, token.Role, auth.Node))
		return "", status.Errorf(codes.PermissionDenied,
			"this needs the role %s; the token %s has the role %s", auth.Node, token.Name, token.Role)
	}
	access.MarkKnownConn(who.conn)
	return token.Name, nil
}

// noteRefused notes the caller that was refused a call, and the reason.
func (s *Server) noteRefused(who caller, reason string) {
	if s.config.Refused != nil {
		s.config.Refused(who.address, reason)
	}
}

// headerOf returns the first value of a caller's metadata. The name is in lower case.
func headerOf(ctx context.Context, name string) string {
	if values := metadata.ValueFromIncomingContext(ctx, name); len(values) > 0 {
		return values[0]
	}
	return ""
}
