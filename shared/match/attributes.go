package match

import (
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/spelling"
	"github.com/weir-proxy/weir/shared/text"
)

// Attributes is the result of classifying one request. Texts alias memory of the caller.
type Attributes struct {
	// Method is in upper case.
	Method []byte
	// Host is in lower case and without its port.
	Host []byte
	// Path is normalised and without the query.
	Path []byte
	// Vague means that a server may read the path as another path. So no list of paths makes the
	// request exempt or gives it a class above the rest.
	Vague bool
	// Query is the query as sent, without the question mark.
	Query []byte
	// ClientIP identifies the client by its address: a whole IPv4 address, or an IPv6 address cut
	// to the policy set's prefix. It is empty if the address is not known.
	ClientIP []byte
	// Address is the whole address, IPv4 in its IPv6-mapped form. It counts if ClientIP is known.
	Address [16]byte
	// Headers are all request headers in order, names in lower case.
	Headers []Header
	// Properties looks up values that are in no header. nil has none. A request asks it only for
	// values that an applicable policy needs.
	Properties Properties
	// Consumers looks up the control plane's data about consumers. nil has none.
	Consumers Consumers
}

// Header is one request header.
type Header struct{ Name, Value []byte }

// Is reports whether the header has a name, given in lower case.
func (h Header) Is(name string) bool { return text.Is(h.Name, name) }

// findHeader returns the value of a header; nil if it has none, or several different values.
func findHeader(headers []Header, name []byte) (value []byte) {
	for i := range headers {
		if !spelling.IsHeader(headers[i].Name, name) {
			continue
		}
		one := singleElement(headers[i].Value)
		if value != nil && !text.Equal(value, one) {
			return nil
		}
		value = one
	}
	return value
}

// Only returns the value of a header, given in lower case, that occurs once; nil otherwise.
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

// Consumers has the control plane's data about consumers.
type Consumers interface {
	// Exceptions reports whether any consumer may have more than a tier, and up to which
	// wire.Consumers.ExceptionsRevision the answers of Find are right.
	Exceptions() (any bool, revision uint64)
	// Find fills in the data of the consumer with this Key. References in it are good until the
	// next call. A request calls it at most once, and only if an applicable policy depends on the
	// assigned tier, or if there are exceptions.
	Find(c *Consumer)
}

// Consumer is the known data of the consumer that makes a request.
type Consumer struct {
	// Key is its ConsumerKey.
	Key keyhash.Key
	// Known means that the request names exactly one consumer.
	Known bool
	// Sure means that no exception up to the revision of Consumers is missing here, nor a tier.
	Sure bool
	// Banned means that the consumer's requests are refused. BanEnds is when that ends by itself,
	// in Unix milliseconds, 0 for never.
	Banned  bool
	BanEnds int64
	// Bypass means that the consumer is never limited.
	Bypass bool
	// Now is the Unix time in milliseconds. Overrides that end by then no longer count.
	Now int64
	// Tier is the name of the tier that the consumer was assigned; empty for none.
	Tier []byte
	// Exceptions is the encoding of the consumer's exceptions by wire.AppendExceptions. Its
	// overrides may have ended.
	Exceptions []byte
}
