package match

import (
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/spelling"
	"github.com/weir-proxy/weir/shared/text"
)

// Attributes are what classification yields for one request. Texts alias memory of the caller.
type Attributes struct {
	// Method is in upper case.
	Method []byte
	// Host is in lower case and without its port.
	Host []byte
	// Path is normalised and without the query.
	Path []byte
	// Vague: a server may read the path as another one, so no list of paths makes the request
	// exempt or gives it a class above the rest.
	Vague bool
	// Query is as sent, without the question mark.
	Query []byte
	// ClientIP identifies the client by its address: an IPv4 address whole, an IPv6 one cut to the
	// policy set's prefix. It is empty if the address is not known.
	ClientIP []byte
	// Address is the whole address, IPv4 in its IPv6-mapped form. It counts if ClientIP is known.
	Address [16]byte
	// Headers are all request headers in order, names in lower case.
	Headers []Header
	// Properties looks up what is in no header. Nil has nothing. A request asks it only for what a
	// policy that applies needs.
	Properties Properties
	// Consumers looks up what the control plane knows of consumers. Nil knows nothing.
	Consumers Consumers
}

// Header is one request header.
type Header struct{ Name, Value []byte }

// Is reports whether the header has a name, given in lower case.
func (h Header) Is(name string) bool { return text.Is(h.Name, name) }

// findHeader returns the value of a header; nil if it has none, or different ones.
func findHeader(headers []Header, name []byte) (value []byte) {
	for i := range headers {
		if !spelling.IsHeader(headers[i].Name, name) {
			continue
		}
		one := single(headers[i].Value)
		if value != nil && !text.Equal(value, one) {
			return nil
		}
		value = one
	}
	return value
}

// Only returns the value of a header, given in lower case, that is there once; nil for another.
func Only(headers []Header, name string) []byte {
	found := -1
	for i := range headers {
		if headers[i].Is(name) {
			if found >= 0 {
				return nil
			}
			found = i
		}
	}
	if found < 0 {
		return nil
	}
	return headers[found].Value
}

// Properties are Envoy's attributes of a request.
type Properties interface {
	// Property returns the value at a path, whose parts are joined by NUL; nil if there is none.
	Property(path []byte) []byte
}

// Consumers knows what the control plane has said of consumers.
type Consumers interface {
	// Exceptions reports whether any consumer may have more than a tier, and up to which
	// wire.Consumers.ExceptionsRevision the answers of Find are right.
	Exceptions() (any bool, revision uint64)
	// Find fills in what is known of the consumer with this Key. What it refers to is good until
	// the next call. A request calls it at most once, and only if a policy that applies goes by
	// the assigned tier, or if there are exceptions.
	Find(c *Consumer)
}

// Consumer is what is known of the consumer that makes a request.
type Consumer struct {
	// Key is its ConsumerKey.
	Key keyhash.Key
	// Known: the request names exactly one consumer.
	Known bool
	// Sure: no exception that was made up to the revision of Consumers is missing here, nor a tier.
	Sure bool
	// Banned: the consumer's requests are refused. BanEnds is when that ends by itself, in Unix
	// milliseconds, 0 for never.
	Banned  bool
	BanEnds int64
	// Bypass: the consumer is never limited.
	Bypass bool
	// Now is the Unix time in milliseconds. Overrides that end by then no longer count.
	Now int64
	// Tier is the name of the tier that the consumer was assigned; empty for none.
	Tier []byte
	// Exceptions is what wire.AppendExceptions has encoded for the consumer. Its overrides may
	// have ended.
	Exceptions []byte
}
