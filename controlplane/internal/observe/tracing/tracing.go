// Package tracing sends traces of requests with OpenTelemetry, if the operator asks for it. Only
// this package knows the exporter.
package tracing

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"strings"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
)

// Tracing makes spans. Make a Tracing with Start. A nil Tracing makes none. It is safe for
// concurrent use.
type Tracing struct {
	provider *sdktrace.TracerProvider
	tracer   trace.Tracer
	carrier  propagation.TraceContext
}

// isWanted reports whether the OpenTelemetry variables of the environment ask for traces.
func isWanted() bool {
	return os.Getenv("OTEL_SDK_DISABLED") != "true" && os.Getenv("OTEL_TRACES_EXPORTER") != "none" &&
		os.Getenv("OTEL_EXPORTER_OTLP_ENDPOINT")+os.Getenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") != ""
}

// Start sends spans to /v1/traces of the collector at endpoint, or to the place that the OTEL_
// variables of the environment give. These variables also set headers, certificates, sampling and
// names. It returns nil if neither asks for traces. If the collector is unreachable, spans are lost
// and logged, with no other effect.
func Start(ctx context.Context, endpoint, version string, log *slog.Logger) (*Tracing, error) {
	var options []otlptracehttp.Option
	switch {
	case endpoint != "":
		target, err := url.JoinPath(endpoint, "v1", "traces")
		if err != nil {
			return nil, fmt.Errorf("cannot send traces: %w", err)
		}
		options = append(options, otlptracehttp.WithEndpointURL(target))
	case !isWanted():
		return nil, nil
	}
	exporter, err := otlptracehttp.New(ctx, options...)
	if err != nil {
		return nil, fmt.Errorf("cannot send traces: %w", err)
	}
	named, err := resource.New(ctx,
		resource.WithAttributes(
			attribute.String("service.name", "weir"), attribute.String("service.version", version),
		),
		resource.WithFromEnv(), resource.WithTelemetrySDK())
	if err != nil && !errors.Is(err, resource.ErrPartialResource) {
		return nil, fmt.Errorf("OTEL_RESOURCE_ATTRIBUTES: %w", err)
	}
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) { log.Warn("spans were lost", "error", err.Error()) }))
	provider := sdktrace.NewTracerProvider(sdktrace.WithBatcher(exporter), sdktrace.WithResource(named))
	return &Tracing{provider: provider, tracer: provider.Tracer("github.com/weir-proxy/weir")}, nil
}

// Provider returns the provider for libraries that make their own spans; nil without tracing.
func (t *Tracing) Provider() trace.TracerProvider {
	if t == nil {
		return nil
	}
	return t.provider
}

// Stop sends the remaining spans, for as long as ctx allows.
func (t *Tracing) Stop(ctx context.Context) error {
	if t == nil {
		return nil
	}
	return t.provider.Shutdown(ctx)
}

// Span is the span of a request that is being served. The zero value is none.
type Span struct{ span trace.Span }

// Serve begins the span of a request, as part of the trace in its traceparent header. The span has
// the route and never the path, which may contain a consumer's key. All unknown methods have the
// same name.
func (t *Tracing) Serve(r *http.Request, route string) (context.Context, Span) {
	if t == nil {
		return r.Context(), Span{}
	}
	if route == "" {
		route = "none"
	}
	method := r.Method
	switch method {
	case http.MethodGet, http.MethodPut, http.MethodPost, http.MethodDelete,
		http.MethodHead, http.MethodPatch, http.MethodOptions:
	default:
		method = "_OTHER"
	}
	ctx := t.carrier.Extract(r.Context(), propagation.HeaderCarrier(r.Header))
	ctx, span := t.tracer.Start(ctx, method+" "+route, trace.WithSpanKind(trace.SpanKindServer),
		trace.WithAttributes(attribute.String("http.request.method", method), attribute.String("http.route", route)))
	return ctx, Span{span}
}

// Call begins the span of a gRPC call with a full method name. It is part of the trace in the
// caller's traceparent header. header returns a header by name.
func (t *Tracing) Call(ctx context.Context, method string, header func(name string) string) (context.Context, Span) {
	if t == nil {
		return ctx, Span{}
	}
	service, name, _ := strings.Cut(strings.TrimPrefix(method, "/"), "/")
	ctx = t.carrier.Extract(ctx, metadata(header))
	ctx, span := t.tracer.Start(ctx, service+"/"+name, trace.WithSpanKind(trace.SpanKindServer),
		trace.WithAttributes(attribute.String("rpc.system", "grpc"), attribute.String("rpc.service", service),
			attribute.String("rpc.method", name)))
	return ctx, Span{span}
}

// metadata reads the caller's metadata by name. It is a propagation.TextMapCarrier that ignores
// writes.
type metadata func(name string) string

// Get implements propagation.TextMapCarrier.
func (m metadata) Get(name string) string { return m(name) }

// Set implements propagation.TextMapCarrier.
func (m metadata) Set(string, string) {}

// Keys implements propagation.TextMapCarrier.
func (m metadata) Keys() []string { return nil }

// EndCall ends the span of a gRPC call with a status code. fault is true if the control plane
// caused the failure.
func (s Span) EndCall(code int, fault bool) {
	if s.span == nil {
		return
	}
	s.span.SetAttributes(attribute.Int("rpc.grpc.status_code", code))
	if fault {
		s.span.SetStatus(codes.Error, "")
	}
	s.span.End()
}

// End ends the span with the status of the answer.
func (s Span) End(status int) {
	if s.span == nil {
		return
	}
	s.span.SetAttributes(attribute.Int("http.response.status_code", status))
	if status >= http.StatusInternalServerError {
		s.span.SetStatus(codes.Error, "")
	}
	s.span.End()
}
