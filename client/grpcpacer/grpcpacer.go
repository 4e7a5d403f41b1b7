// Package grpcpacer paces gRPC calls as package client paces HTTP requests. It is a separate
// package, so that programs without gRPC do not import gRPC.
package grpcpacer

import (
	"context"
	"errors"
	"net/http"
	"slices"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/weir-proxy/weir/client"
)

// Unary returns an interceptor that waits until a call may be sent. It repeats a refused call if
// repeatable returns true: the server may see the method twice. A nil repeatable repeats no call.
//
// Each server needs its own Pacer. A method is a route. If an earlier refusal still holds for
// longer than the call may wait, the call is not sent; its status is RESOURCE_EXHAUSTED.
func Unary(p *client.Pacer, repeatable func(method string) bool) grpc.UnaryClientInterceptor {
	return func(ctx context.Context, method string, request, reply any, cc *grpc.ClientConn,
		invoke grpc.UnaryInvoker, options ...grpc.CallOption) error {
		call := p.Begin(method, repeatable != nil && repeatable(method))
		for {
			if err := call.Wait(ctx); err != nil {
				return statusOf(err)
			}
			var header, trailer metadata.MD
			seen := append(slices.Clip(options), grpc.Header(&header), grpc.Trailer(&trailer))
			err := invoke(ctx, method, request, reply, cc, seen...)
			if err != nil && len(header) == 0 && len(trailer) == 0 {
				call.Failed()
				return err
			}
			fields := fieldsOf(header, trailer)
			if !call.Answered(ctx, httpStatus(err, fields), fields) {
				return err
			}
		}
	}
}

// statusOf returns the gRPC error of a call that was not sent.
func statusOf(err error) error {
	if held := (*client.HeldError)(nil); errors.As(err, &held) {
		return status.Error(codes.ResourceExhausted, held.Error())
	}
	return status.FromContextError(err).Err()
}

// fieldsOf joins the header and the trailer of an answer. A refusal has only a trailer.
func fieldsOf(header, trailer metadata.MD) http.Header {
	h := http.Header{}
	for _, md := range []metadata.MD{header, trailer} {
		for name, values := range md {
			for _, value := range values {
				h.Add(name, value)
			}
		}
	}
	return h
}

// httpStatus returns the HTTP status that means the same to a Pacer. Without one of the fields,
// RESOURCE_EXHAUSTED may mean a message that is too large, and UNAVAILABLE a broken connection.
// Neither is a refusal, so the status is 200.
func httpStatus(err error, fields http.Header) int {
	limited := fields.Get("Retry-After") != "" || fields.Get("RateLimit") != "" ||
		fields.Get("RateLimit-Remaining") != "" || fields.Get("X-RateLimit-Remaining") != "" ||
		fields.Get("X-Rate-Limit-Remaining") != ""
	switch {
	case limited && status.Code(err) == codes.ResourceExhausted:
		return http.StatusTooManyRequests
	case limited && status.Code(err) == codes.Unavailable:
		return http.StatusServiceUnavailable
	}
	return http.StatusOK
}
