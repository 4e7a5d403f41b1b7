package importer

import (
	"strings"

	"github.com/weir-proxy/weir/shared/quota"
)

// maxName is the longest name of a policy.
const maxName = 63

// Set is a policy set as the language has it. Fields that are empty are left out.
type Set struct {
	// Source names the input of the import, for the first comment; Notes are further lines of it.
	Source string   `yaml:"-"`
	Notes  []string `yaml:"-"`

	Version  string   `yaml:"version"`
	Identity Identity `yaml:"identity,omitempty"`
	Tiers    []string `yaml:"tiers,omitempty,flow"`
	Headers  Dialects `yaml:"headers,omitempty,flow"`
	Exempt   Exempt   `yaml:"exempt,omitempty"`
	Policies []Policy `yaml:"policies"`
}

// Identity has the sources by which callers are found.
type Identity struct {
	ClientIP struct {
		TrustedHops int `yaml:"trusted_hops,omitempty"`
		IPv6Prefix  int `yaml:"ipv6_prefix,omitempty"`
	} `yaml:"client_ip,omitempty,flow"`
	Consumer []Source `yaml:"consumer,omitempty,flow"`
}

// Source is the place of the consumer in a request: a header, query or jwt of a name, or client_ip.
type Source struct{ Kind, Name string }

// ClientIP identifies the consumer by the client's address.
var ClientIP = Source{Kind: "client_ip"}

// Dialects are the headers that clients get.
type Dialects struct {
	Standard string `yaml:"standard,omitempty"`
	Legacy   string `yaml:"legacy,omitempty"`
}

// Exempt are the requests that are never limited.
type Exempt struct {
	ClientIPs List `yaml:"client_ips,omitempty"`
	Paths     List `yaml:"paths,omitempty"`
}

// Policy is a policy that is to be written.
type Policy struct {
	Name string `yaml:"name"`
	// From are the items that it comes from, for its comment: file, line and text.
	From  []string `yaml:"-"`
	Match Match    `yaml:"match,omitempty"`
	// Partition is written as it is; empty is one bucket for all.
	Partition []string `yaml:"partition,flow"`
	IfAbsent  string   `yaml:"if_absent,omitempty"`
	// Algorithm, with Align or MaxWait where it has them; empty is the token bucket.
	Algorithm string `yaml:"algorithm,omitempty"`
	Align     string `yaml:"align,omitempty"`
	MaxWait   Span   `yaml:"max_wait,omitempty"`
	Limits    Limits `yaml:"limit,omitempty"`
	// MaxHold is a span in the language, or forever.
	MaxHold string `yaml:"max_hold,omitempty"`
	Cost    Cost   `yaml:"cost,omitempty"`
	Mode    string `yaml:"mode,omitempty"`
	// OnFailure is the last and only step, allow or deny.
	OnFailure []string `yaml:"on_failure,omitempty,flow"`
	// Enforcement is shadow or off, or a Share.
	Enforcement any      `yaml:"enforcement,omitempty"`
	Response    Response `yaml:"response,omitempty"`
}

// Share is the percentage of keys for which a policy is enforced.
type Share int64

// Span is a time span, written as the language has it.
type Span quota.Span

// Cost is the cost of a request. Commit names metadata of the response with the cost, like
// ai/tokens; until then it is Reserve.
type Cost struct {
	Reserve int64
	Commit  string
}

// Match is the requests that a policy is for.
type Match struct {
	// Domain and Descriptors make it a match for calls to the gRPC rate limit service.
	Domain      string   `yaml:"domain,omitempty"`
	Descriptors []Entry  `yaml:"descriptors,omitempty"`
	Hosts       List     `yaml:"hosts,omitempty"`
	Methods     List     `yaml:"methods,omitempty"`
	Paths       List     `yaml:"paths,omitempty"`
	Headers     []Header `yaml:"headers,omitempty"`
	ClientIPs   List     `yaml:"client_ips,omitempty"`
}

// List is a list of texts, written in one line if it is not long.
type List []string

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

// Limits are a policy's limits, all of which must allow.
type Limits []Limit

// Limit is a quota in a window, or InFlight requests at the same time. A Burst of 0 leaves the
// default.
type Limit struct {
	Quota    int64
	Window   quota.Span
	Burst    int64
	InFlight int64
}

// Response is the answer to a refused client; zero values leave the default.
type Response struct {
	Status      int64  `yaml:"status,omitempty"`
	Body        string `yaml:"body,omitempty"`
	ContentType string `yaml:"content_type,omitempty"`
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

// Rate returns a limit of n for each span, with a window that the language can have. It extends a
// window below a second until it has whole milliseconds and at least a second.
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
