package simulate

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/weir-proxy/weir/shared/match"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/quota"
)

// Names has for each field of a log its possible names. The first name of a list is also the name
// of the field on the command line. If a line of a log has several names of a list, the first of
// them in the list counts. Any other field is the request header of its name. The value of the
// field consumer becomes the source where the policy set looks for a consumer first, unless the log
// has that header.
var Names = map[string][]string{
	"time":   {"time", "start_time", "timestamp", "@timestamp", "ts"},
	"method": {"method", "request_method", ":method"},
	"path":   {"path", "x-envoy-original-path", "request_path", "uri", ":path"},
	"host":   {"host", "authority", "request_host", ":authority"},
	"client_ip": {
		"client_ip", "downstream_remote_address", "downstream_direct_remote_address",
		"remote_addr", "remote_address",
	},
	"status":   {"status", "response_code", "code"},
	"duration": {"duration", "duration_ms"},
	"consumer": {"consumer", "key", "user"},
	"tier":     {"tier"},
	"flags":    {"flags", "response_flags"},
}

// record is one line of a log: one request.
type record struct {
	at quota.Instant
	// headers are the headers that a filter would have seen, including pseudo-headers.
	headers []match.Header
	source  []byte
	// verified are the values that come from no header, by the path of the property.
	verified map[string][]byte
	tier     []byte
	limited  bool // the log shows that it was refused with 429
	// lasted is the time that the request was in flight; 0 if the log does not show it.
	lasted quota.Span
	// status is the status of the response, 0 if the log does not show it. answered has the values
	// of the response from which policies read costs: headers, trailers and metadata by their
	// names, and grpc_status.
	status   int
	answered map[string]string
	// flags are Envoy's response flags, which show why a response is incomplete.
	flags []string
}

// Property implements match.Properties.
func (r *record) Property(path []byte) []byte { return r.verified[string(path)] }

// Exceptions implements match.Consumers. A log does not know the consumers' own limits.
func (r *record) Exceptions() (any bool, exceptionsRevision uint64) { return false, 0 }

// Find implements match.Consumers. The tier of the log is final: nothing can add to it later.
func (r *record) Find(c *match.Consumer) { c.Tier, c.Sure = r.tier, true }

// fields finds the inputs of a policy set in the fields of a log.
type fields struct {
	// names are the possible names of each field, headers the names of each header that policies
	// read.
	names   map[string][]string
	headers map[string][]string
	// consumer is the source where policies look for a consumer first; nil if they do not.
	consumer *policy.Source
	// answered are the names of the response's values from which policies read costs.
	answered []string
	// verified are the sources that Envoy would ask for.
	verified []policy.Source
}

// newFields returns the fields that the sets need. chosen are names given by the operator, by field
// or header.
func newFields(chosen map[string]string, sets ...*policy.Set) *fields {
	f := &fields{names: map[string][]string{}, headers: map[string][]string{}}
	for name, known := range Names {
		f.names[name] = known
	}
	for _, set := range sets {
		f.addNeeded(set)
	}
	for name, field := range chosen {
		if _, known := Names[name]; known {
			f.names[name] = []string{field}
		} else {
			f.headers[strings.ToLower(name)] = []string{field}
		}
	}
	return f
}

// addNeeded adds the fields that a set needs.
func (f *fields) addNeeded(set *policy.Set) {
	// Note the headers and the verified values that a source needs.
	header := func(name string) {
		f.headers[name] = []string{name, strings.ReplaceAll(name, "-", "_")}
	}
	source := func(s policy.Source) {
		switch s.Kind {
		case policy.SourceHeader:
			header(s.Name)
		case policy.SourceCookie:
			header("cookie")
		default:
			if s.Kind.AsksEnvoy() {
				f.verified = append(f.verified, s)
			}
		}
	}
	// The sources that identify a caller.
	if set.Identity.TrustedHops > 0 {
		header("x-forwarded-for")
	}
	for i, s := range set.Identity.Consumer {
		if source(s); i == 0 && f.consumer == nil {
			f.consumer = &set.Identity.Consumer[i]
		}
	}
	for _, s := range set.Identity.Tier {
		source(s)
	}
	// The conditions, keys and costs of the policies.
	for _, p := range set.Policies {
		for _, h := range p.Match.Headers {
			header(h.Name)
		}
		for _, part := range p.Partition {
			if kind, ok := part.Kind.Source(); ok {
				source(policy.Source{Kind: kind, Name: part.Name})
			}
		}
		for _, s := range p.Cost.Sources() {
			source(s)
		}
		switch p.Commit.By {
		case policy.CommitHeader, policy.CommitTrailer, policy.CommitMetadata:
			f.answered = append(f.answered, p.Commit.Name)
		case policy.CommitGRPCStatus:
			f.answered = append(f.answered, "grpc_status")
		}
		for _, own := range p.Figures {
			source(own.Quota.Source)
			source(own.Burst.Source)
		}
	}
}

// buildRecord builds a request from a line. get returns the text of a field, empty if the line does
// not have it.
func (f *fields) buildRecord(get func(name string) string) (*record, error) {
	// The request itself.
	at, err := parseTime(f.findFirst(get, "time"))
	if err != nil {
		return nil, err
	}
	r := &record{at: at}
	path := f.findFirst(get, "path")
	if path == "" {
		return nil, errors.New("it has no path")
	}
	r.addHeader(":method", orElse(f.findFirst(get, "method"), "GET"))
	r.addHeader(":path", path)
	if host := f.findFirst(get, "host"); host != "" {
		r.addHeader(":authority", host)
	}
	r.source = []byte(f.findFirst(get, "client_ip"))
	r.tier = []byte(f.findFirst(get, "tier"))
	// How it was answered, and how long it took.
	r.limited = f.findFirst(get, "status") == "429"
	if ms, err := strconv.ParseFloat(f.findFirst(get, "duration"), 64); err == nil && ms > 0 {
		r.lasted = quota.Span(min(ms, float64(quota.MaxWindow/quota.Millisecond)) * float64(quota.Millisecond))
	}
	// The headers, the response's values and the verified values.
	for name, known := range f.headers {
		if value := findFirstOf(get, known); value != "" {
			r.addHeader(name, value)
		}
	}
	r.status, _ = strconv.Atoi(f.findFirst(get, "status"))
	r.flags = strings.Split(f.findFirst(get, "flags"), ",")
	for _, name := range f.answered {
		if r.answered == nil {
			r.answered = map[string]string{}
		}
		r.answered[name] = findFirstOf(get, []string{name, strings.ReplaceAll(name, "-", "_"), afterSpace(name)})
	}
	for _, s := range f.verified {
		if value := findFirstOf(get, []string{s.String()}); value != "" {
			r.setVerified(s, value)
		}
	}
	if who := f.findFirst(get, "consumer"); who != "" && f.consumer != nil {
		r.putConsumer(*f.consumer, who)
	}
	return r, nil
}

// afterSpace returns a metadata key without its namespace, as logs write it: total_tokens for
// ai/total_tokens.
func afterSpace(name string) string {
	_, key, _ := strings.Cut(name, "/")
	return key
}

// findFirst returns the first text that the line has for a field.
func (f *fields) findFirst(get func(string) string, name string) string {
	return findFirstOf(get, f.names[name])
}

// findFirstOf returns the first text that is not empty, of several names.
func findFirstOf(get func(string) string, names []string) string {
	for _, name := range names {
		if value := get(name); value != "" && value != "-" {
			return value
		}
	}
	return ""
}

// addHeader appends a header to the request.
func (r *record) addHeader(name, value string) {
	r.headers = append(r.headers, match.Header{Name: []byte(name), Value: []byte(value)})
}

// putConsumer puts a consumer where the policy set looks for it, unless the log has that value
// itself.
func (r *record) putConsumer(s policy.Source, who string) {
	switch s.Kind {
	case policy.SourceHeader:
		for _, h := range r.headers {
			if h.Is(s.Name) {
				return
			}
		}
		r.addHeader(s.Name, who)
	case policy.SourceCookie:
		r.addHeader("cookie", s.Name+"="+who)
	case policy.SourceQuery:
		for i := range r.headers {
			if h := &r.headers[i]; h.Is(":path") {
				separator := "?"
				if strings.Contains(string(h.Value), "?") {
					separator = "&"
				}
				h.Value = append(h.Value, separator+url.QueryEscape(s.Name)+"="+url.QueryEscape(who)...)
			}
		}
	default:
		if s.Kind.AsksEnvoy() {
			r.setVerified(s, who)
		}
	}
}

// setVerified sets a value that Envoy would have verified.
func (r *record) setVerified(s policy.Source, value string) {
	if r.verified == nil {
		r.verified = map[string][]byte{}
	}
	if path := match.PropertyPath(s); r.verified[path] == nil {
		r.verified[path] = []byte(value)
	}
}

// orElse returns text, or other if text is empty.
func orElse(text, other string) string {
	if text == "" {
		return other
	}
	return text
}

// parseTime reads a time in RFC 3339, or in seconds, milliseconds or microseconds since 1970.
func parseTime(text string) (quota.Instant, error) {
	if text == "" {
		return 0, errors.New("it has no time")
	}
	if at, err := time.Parse(time.RFC3339Nano, text); err == nil && at.UnixMicro() > 0 {
		return quota.Instant(at.UnixMicro()), nil
	}
	n, err := strconv.ParseFloat(text, 64)
	if err != nil || !(n > 0) || n > 1e16 {
		return 0, fmt.Errorf("its time %q is neither like 2026-05-04T09:30:00Z nor a number of seconds, "+
			"milliseconds or microseconds since 1970", shortenText(text))
	}
	switch {
	case n < 1e11:
		n *= 1e6
	case n < 1e14:
		n *= 1e3
	}
	return quota.Instant(n), nil
}

// shortenText cuts a text for an error message.
func shortenText(text string) string {
	if len(text) > 40 {
		return strings.ToValidUTF8(text[:40], "") + "…"
	}
	return text
}

// fromJSON reads the fields of an object. Numbers keep their text.
func fromJSON(line []byte) (func(name string) string, error) {
	var object map[string]json.RawMessage
	if err := json.Unmarshal(line, &object); err != nil {
		return nil, errors.New("it is no JSON object")
	}
	return func(name string) string {
		raw := object[name]
		if len(raw) == 0 || raw[0] == '{' || raw[0] == '[' || raw[0] == 'n' {
			return ""
		}
		if raw[0] != '"' {
			return string(raw)
		}
		if bytes.IndexByte(raw, '\\') < 0 {
			return string(raw[1 : len(raw)-1])
		}
		var text string
		if json.Unmarshal(raw, &text) != nil {
			return ""
		}
		return text
	}, nil
}
