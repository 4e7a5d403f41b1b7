package redisstore

import (
	"context"
	"errors"

	"github.com/redis/go-redis/v9"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
)

// Traced makes a span of each call to Redis that belongs to a traced request. Calls in the
// background have no span: they would be most of the spans.
func Traced(provider trace.TracerProvider) Option {
	return func(s *Store) {
		hook := traced{provider.Tracer("github.com/weir-proxy/weir/redisstore")}
		if !s.cluster { // Commands of people pass here too.
			s.client.AddHook(hook)
			return
		}
		for _, client := range []redis.UniversalClient{s.client, s.people} {
			if cluster, ok := client.(*redis.ClusterClient); ok {
				cluster.OnNewNode(func(client *redis.Client) { client.AddHook(hook) })
			}
		}
	}
}

// traced names the command in a span, never its arguments or the text of an error, which may quote
// stored values.
type traced struct{ tracer trace.Tracer }

// DialHook implements redis.Hook, and changes nothing.
func (traced) DialHook(next redis.DialHook) redis.DialHook { return next }

// ProcessHook implements redis.Hook.
func (t traced) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, command redis.Cmder) error {
		ctx, end := t.startSpan(ctx, command.Name())
		return end(next(ctx, command))
	}
}

// ProcessPipelineHook implements redis.Hook.
func (t traced) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, commands []redis.Cmder) error {
		ctx, end := t.startSpan(ctx, "pipeline")
		return end(next(ctx, commands))
	}
}

// startSpan starts a span. Call the returned function with the error of the command: it ends the
// span and returns the error.
func (t traced) startSpan(ctx context.Context, name string) (context.Context, func(error) error) {
	if !trace.SpanFromContext(ctx).IsRecording() {
		return ctx, func(err error) error { return err }
	}
	ctx, span := t.tracer.Start(ctx, "redis "+name, trace.WithSpanKind(trace.SpanKindClient),
		trace.WithAttributes(attribute.String("db.system.name", "redis"), attribute.String("db.operation.name", name)))
	return ctx, func(err error) error {
		if err != nil && !errors.Is(err, redis.Nil) {
			span.SetStatus(codes.Error, "")
		}
		span.End()
		return err
	}
}
