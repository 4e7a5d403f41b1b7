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

// Names are the names that a field of a log may have, the first that is there counts. The first is
// the field's own, by which it is called on the command line. Any other field is the request header
// of that name; a consumer is where the policy set looks for one first, unless the log has the
// header itself.
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

// record is one line of a log: a request as it was made.
type record struct {
	at quota.Instant
	// headers are those that a filter would have seen, the pseudo-headers among them.
	headers []match.Header
	source  []byte
	// verified is what is in no header, by the path that a filter would ask for.
	verified map[string][]byte
	tier     []byte
	limited  bool // the log says that it was refused with 429
	// lasted is how long the request was in flight; 0 where the log does not say.
	lasted quota.Span
	// status is that of the response, 0 where the log does not say; answered are the headers of the
	// response that policies look at.
	status   int
	answered map[string]string
	// flags are Envoy's flags of the response, which say why one was not whole.
	flags []string
}

// Property implements match.Properties.
func (r *record) Property(path []byte) []byte { return r.verified[string(path)] }

// Exceptions implements match.Consumers: a log says nothing of limits of consumers' own.
func (r *record) Exceptions() (any bool, turn uint64) { return false, 0 }

// Find implements match.Consumers.
func (r *record) Find(c *match.Consumer) { c.Tier, c.Sure = r.tier, true }

// fields finds what a policy set needs in the fields of a log.
type fields struct {
	// names are the names of each field, headers those of the headers that policies look at.
	names   map[string][]string
	headers map[string][]string
	// consumer is where policies look for a consumer first; nil if they do not.
	consumer *policy.Source
	// answered are the names of the response's headers that policies look at.
	answered []string
	// verified are the sources that Envoy would be asked for.
	verified []policy.Source
}

// newFields says what is needed for all of the sets. chosen are names that the operator gave, by
// field or header.
func newFields(chosen map[string]string, sets ...*policy.Set) *fields {
	f := &fields{names: map[string][]string{}, headers: map[string][]string{}}
	for name, known := range Names {
		f.names[name] = known
	}
	for _, set := range sets {
		f.need(set)
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

func (f *fields) need(set *policy.Set) {
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

// record makes a request of the fields of a line. get returns a field's text, empty if it is not
// there.
func (f *fields) record(get func(name string) string) (*record, error) {
	at, err := parseTime(f.first(get, "time"))
	if err != nil {
		return nil, err
	}
	r := &record{at: at}
	path := f.first(get, "path")
	if path == "" {
		return nil, errors.New("it has no path")
	}
	r.add(":method", orElse(f.first(get, "method"), "GET"))
	r.add(":path", path)
	if host := f.first(get, "host"); host != "" {
		r.add(":authority", host)
	}
	r.source = []byte(f.first(get, "client_ip"))
	r.tier = []byte(f.first(get, "tier"))
	r.limited = f.first(get, "status") == "429"
	if ms, err := strconv.ParseFloat(f.first(get, "duration"), 64); err == nil && ms > 0 {
		r.lasted = quota.Span(min(ms, float64(quota.MaxWindow/quota.Millisecond)) * float64(quota.Millisecond))
	}
	for name, known := range f.headers {
		if value := firstOf(get, known); value != "" {
			r.add(name, value)
		}
	}
	r.status, _ = strconv.Atoi(f.first(get, "status"))
	r.flags = strings.Split(f.first(get, "flags"), ",")
	for _, name := range f.answered {
		if r.answered == nil {
			r.answered = map[string]string{}
		}
		r.answered[name] = firstOf(get, []string{name, strings.ReplaceAll(name, "-", "_"), afterSpace(name)})
	}
	for _, s := range f.verified {
		if value := firstOf(get, []string{s.String()}); value != "" {
			r.verify(s, value)
		}
	}
	if who := f.first(get, "consumer"); who != "" && f.consumer != nil {
		r.identify(*f.consumer, who)
	}
	return r, nil
}

// afterSpace is the key of metadata without its name space, as logs have it: ai/total_tokens is
// total_tokens there.
func afterSpace(name string) string {
	_, key, _ := strings.Cut(name, "/")
	return key
}

func (f *fields) first(get func(string) string, name string) string {
	return firstOf(get, f.names[name])
}

func firstOf(get func(string) string, names []string) string {
	for _, name := range names {
		if value := get(name); value != "" && value != "-" {
			return value
		}
	}
	return ""
}

func (r *record) add(name, value string) {
	r.headers = append(r.headers, match.Header{Name: []byte(name), Value: []byte(value)})
}

// identify puts a consumer where the policy set looks for one, unless the log has that.
func (r *record) identify(s policy.Source, who string) {
	switch s.Kind {
	case policy.SourceHeader:
		for _, h := range r.headers {
			if h.Is(s.Name) {
				return
			}
		}
		r.add(s.Name, who)
	case policy.SourceCookie:
		r.add("cookie", s.Name+"="+who)
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
			r.verify(s, who)
		}
	}
}

func (r *record) verify(s policy.Source, value string) {
	if r.verified == nil {
		r.verified = map[string][]byte{}
	}
	if path := match.PropertyPath(s); r.verified[path] == nil {
		r.verified[path] = []byte(value)
	}
}

func orElse(text, other string) string {
	if text == "" {
		return other
	}
	return text
}

// parseTime reads RFC 3339, or seconds, milliseconds or microseconds since 1970.
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
			"milliseconds or microseconds since 1970", shortened(text))
	}
	switch {
	case n < 1e11:
		n *= 1e6
	case n < 1e14:
		n *= 1e3
	}
	return quota.Instant(n), nil
}

func shortened(text string) string {
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
