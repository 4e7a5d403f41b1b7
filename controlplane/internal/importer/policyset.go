package importer

import (
	"strings"

	"github.com/weir-proxy/weir/shared/quota"
)

// clientIP is a part of a partition, and the last source of consumers.
const clientIP = "client_ip"

// maxName is the longest name of a policy.
const maxName = 63

// Set is what a policy set has beside policies. The zero value adds nothing to the document.
type Set struct {
	// Source is what the document is made from, for its first comment.
	Source string
	// Notes are further lines of that comment.
	Notes []string
	// TrustedHops and IPv6Prefix are those of identity.client_ip; 0 leaves the default.
	TrustedHops, IPv6Prefix int
	// Consumer are the sources of identity.consumer in the language's flow form, such as
	// {header: apikey} or client_ip.
	Consumer []string
	Tiers    []string
	// Standard and Legacy are those of headers; empty leaves the default.
	Standard, Legacy string
	// ExemptIPs and ExemptPaths are never limited.
	ExemptIPs, ExemptPaths []string
}

// Policy is a policy that is to be written. Empty fields are left out.
type Policy struct {
	Name string
	// From are the items that it comes from, for its comment: file, line and what stands there.
	From  []string
	Match Match
	// Partition is written as it is; empty is one bucket for all.
	Partition []string
	IfAbsent  string
	// Algorithm, with Align or MaxWait where it has them; empty is the token bucket.
	Algorithm string
	Align     string
	MaxWait   quota.Span
	// MaxHold is a span in the language, or forever.
	MaxHold string
	Limits  []Limit
	Cost    int64
	// Commit is the metadata that say what a response has cost, like ai/tokens. Cost is reserved
	// till then.
	Commit string
	Mode   string
	// OnFailure is the last and only step, allow or deny.
	OnFailure string
	// Enforcement is shadow or off, or a percentage like {enforce: 25}.
	Enforcement string
	Response    Response
}

// Match is the requests that a policy is for.
type Match struct {
	Hosts, Methods, Paths []string
	Headers               []Header
	ClientIPs             []string
	// Domain and Descriptors make it a match for calls to the gRPC rate limit service.
	Domain      string
	Descriptors []Entry
}

// Entry is a condition on an entry of a descriptor: its value, and values that it must not have.
type Entry struct {
	Name   string
	Value  Value
	Except []Value
}

// Value is a condition on a value: Op is equals, prefix or present.
type Value struct{ Op, Text string }

// Header is a condition on a header: Op is equals, prefix, present or absent.
type Header struct{ Name, Op, Value string }

// Limit is a quota in a window, or InFlight requests at the same time. A Burst of 0 leaves the
// default.
type Limit struct {
	Quota    int64
	Window   quota.Span
	Burst    int64
	InFlight int64
}

// Response is what a refused client gets; zero values leave the default.
type Response struct {
	Status            int64
	Body, ContentType string
}

// Slug makes a policy's name of a text: small letters, digits, dots and dashes.
func Slug(text string) string {
	var b strings.Builder
	for _, r := range strings.ToLower(text) {
		switch {
		case r >= 'a' && r <= 'z', r >= '0' && r <= '9', r == '.', r == '_':
			b.WriteRune(r)
		case !strings.HasSuffix(b.String(), "-"):
			b.WriteByte('-')
		}
	}
	name := strings.Trim(b.String(), "-._")
	name = strings.TrimRight(name[:min(len(name), maxName)], "-._")
	if name == "" {
		return "policy"
	}
	return name
}

// Rate is n for each span as a quota in a window that the language can have: windows below a
// second are made as long as whole seconds need.
func Rate(n int64, span quota.Span) Limit {
	l := Limit{Quota: n, Window: span}
	if span <= 0 || span >= quota.Second && span%quota.Millisecond == 0 {
		return l
	}
	// The shortest multiple of the span that is whole milliseconds and at least a second.
	step := span
	for f := quota.Span(1); f <= 1000; f++ {
		if whole := span * f; whole%quota.Millisecond == 0 {
			step = whole
			break
		}
	}
	times := (quota.Second + step - 1) / step
	return Limit{Quota: n * int64(step/span) * int64(times), Window: step * times}
}
