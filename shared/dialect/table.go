package dialect

// Legacy is the number of an older dialect. It travels in messages: never renumber.
type Legacy uint8

// The older dialects.
const (
	LegacyOff Legacy = iota
	XRateLimit
	Envoy
	GitHub
	Discord
	// RateLimit is the trio of the drafts up to 06.
	RateLimit
	// XRateLimitHyphen is the dialect of Okta and X, with a hyphen more.
	XRateLimitHyphen
)

// Standard is the number of an IETF dialect. It travels in messages: never renumber.
type Standard uint8

// The IETF dialects.
const (
	StandardOff Standard = iota
	Draft11
)

// MaxHeaders bounds the headers of a dialect. A row with more does not compile.
const MaxHeaders = 6

// Row is a dialect.
type Row struct {
	// Name is the dialect's name in policy sets.
	Name string
	// Headers are in the order in which they are written. An empty name ends them.
	Headers [MaxHeaders]Header
}

// Header is a header of a dialect.
type Header struct {
	// Name is in lower case, and begins with one of Families.
	Name string
	says figure
}

// Legacies are the older dialects, by number.
var Legacies = [...]Row{
	LegacyOff: {Name: "off"},
	XRateLimit: {"x-ratelimit", [MaxHeaders]Header{
		{"x-ratelimit-limit", burst}, {"x-ratelimit-remaining", left}, {"x-ratelimit-reset", resetAt},
	}},
	Envoy: {"envoy", [MaxHeaders]Header{
		{"x-ratelimit-limit", bursts}, {"x-ratelimit-remaining", left}, {"x-ratelimit-reset", resetIn},
	}},
	GitHub: {"github", [MaxHeaders]Header{
		{"x-ratelimit-limit", burst}, {"x-ratelimit-remaining", left}, {"x-ratelimit-reset", resetAt},
		{"x-ratelimit-used", used}, {"x-ratelimit-resource", name},
	}},
	Discord: {"discord", [MaxHeaders]Header{
		{"x-ratelimit-limit", burst}, {"x-ratelimit-remaining", left}, {"x-ratelimit-reset", resetAt},
		{"x-ratelimit-bucket", bucket}, {"x-ratelimit-reset-after", resetAfter}, {"x-ratelimit-scope", scope},
	}},
	RateLimit: {"ratelimit", [MaxHeaders]Header{
		{"ratelimit-limit", burst}, {"ratelimit-remaining", left}, {"ratelimit-reset", resetIn},
	}},
	XRateLimitHyphen: {"x-rate-limit", [MaxHeaders]Header{
		{"x-rate-limit-limit", burst}, {"x-rate-limit-remaining", left}, {"x-rate-limit-reset", resetAt},
	}},
}

// Standards are the IETF dialects, by number.
var Standards = [...]Row{
	StandardOff: {Name: "off"},
	Draft11: {"draft-11", [MaxHeaders]Header{
		{"ratelimit-policy", policies}, {"ratelimit", limits},
	}},
}

// String returns the dialect's name in the policy language.
func (l Legacy) String() string { return Legacies[l].Name }

// String returns the dialect's name in the policy language.
func (s Standard) String() string { return Standards[s].Name }
