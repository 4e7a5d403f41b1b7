// Package tracing follows requests with OpenTelemetry, if the operator asks for it. It alone knows
// the exporter.
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

// Tracing makes spans. Make one with Start; nil makes none. It is safe for concurrent use.
type Tracing struct {
	provider *sdktrace.TracerProvider
	tracer   trace.Tracer
	carrier  propagation.TraceContext
}

// wanted reports whether the environment asks for traces, in OpenTelemetry's words.
func wanted() bool {
	return os.Getenv("OTEL_SDK_DISABLED") != "true" && os.Getenv("OTEL_TRACES_EXPORTER") != "none" &&
		os.Getenv("OTEL_EXPORTER_OTLP_ENDPOINT")+os.Getenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") != ""
}

// Start sends spans to /v1/traces of the collector at endpoint, or where the environment's OTEL_
// variables say, which also set headers, certificates, sampling and names. It returns nil if
// neither asks for traces. A collector that is away is logged and costs spans, nothing else.
func Start(ctx context.Context, endpoint, version string, log *slog.Logger) (*Tracing, error) {
	var options []otlptracehttp.Option
	switch {
	case endpoint != "":
		target, err := url.JoinPath(endpoint, "v1", "traces")
		if err != nil {
			return nil, fmt.Errorf("traces cannot be sent: %w", err)
		}
		options = append(options, otlptracehttp.WithEndpointURL(target))
	case !wanted():
		return nil, nil
	}
	exporter, err := otlptracehttp.New(ctx, options...)
	if err != nil {
		return nil, fmt.Errorf("traces cannot be sent: %w", err)
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

// Provider is for libraries that make spans of their own; nil without tracing.
func (t *Tracing) Provider() trace.TracerProvider {
	if t == nil {
		return nil
	}
	return t.provider
}

// Stop sends what was not sent yet, as long as ctx allows.
func (t *Tracing) Stop(ctx context.Context) error {
	if t == nil {
		return nil
	}
	return t.provider.Shutdown(ctx)
}

// Span is a request that is being served. The zero value is none.
type Span struct{ span trace.Span }

// Serve begins the span of a request, which goes on with the trace of its traceparent header. It
// names the route, never the path, which may hold a consumer's key; methods that are not those of
// the interface have one name.
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

// Call begins the span of a gRPC call, given by its full method. It goes on with the trace of the
// traceparent that the caller sent, which header returns by its name.
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

// metadata is a caller's, read by name. It is a propagation.TextMapCarrier that nothing is put
// into.
type metadata func(name string) string

// Get implements propagation.TextMapCarrier.
func (m metadata) Get(name string) string { return m(name) }

// Set implements propagation.TextMapCarrier.
func (m metadata) Set(string, string) {}

// Keys implements propagation.TextMapCarrier.
func (m metadata) Keys() []string { return nil }

// EndCall ends the span of a gRPC call with the number of its status. Fault: the control plane is
// to blame for it.
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
