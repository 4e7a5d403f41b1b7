package fromkong

import (
	"slices"
	"strings"

	"github.com/weir-proxy/weir/controlplane/internal/offline/importer"
)

// authPlugins find Kong's consumers.
var authPlugins = []string{
	"key-auth", "key-auth-enc", "jwt", "openid-connect", "basic-auth", "hmac-auth", "oauth2", "oauth2-introspection",
	"ldap-auth", "ldap-auth-advanced", "mtls-auth", "session",
}

// addIdentity makes the sources of consumers of the authentication plugins. A caller that Kong has
// no consumer for is counted by its address.
func (r *reader) addIdentity() {
	// Collect each source once.
	var sources []importer.Source
	add := func(kind, name string) {
		if source := (importer.Source{Kind: kind, Name: name}); !slices.Contains(sources, source) {
			sources = append(sources, source)
		}
	}
	// Read the plugins that authenticate.
	for _, p := range r.auth {
		config := p.Get("config")
		switch p.Get("name").Text() {
		case "key-auth", "key-auth-enc":
			names := config.Get("key_names").Texts()
			if len(names) == 0 {
				names = []string{"apikey"}
			}
			for _, name := range names {
				if t := config.Get("key_in_header"); !t.Exists() || t.Is() {
					add("header", strings.ToLower(name))
				}
			}
			for _, name := range names {
				if t := config.Get("key_in_query"); !t.Exists() || t.Is() {
					add("query", name)
				}
			}
		case "jwt":
			add("jwt", config.Get("key_claim_name").Or("iss"))
		case "openid-connect":
			claims := config.Get("consumer_claim").Texts()
			add("jwt", importer.Join(".", append(claims, subject(claims))...))
		}
	}
	r.b.Set.Identity.Consumer = append(sources, importer.ClientIP)
}

func subject(claims []string) string {
	if len(claims) > 0 {
		return ""
	}
	return "sub"
}

// unreadPlugins says which authentication plugins find consumers that Weir cannot find.
func (r *reader) unreadPlugins() string {
	var names []string
	for _, p := range r.auth {
		switch name := p.Get("name").Text(); name {
		case "key-auth", "key-auth-enc", "jwt", "openid-connect":
		default:
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		return ""
	}
	return "Weir does not know the consumers of " + importer.Join(", ", names...) +
		" and counts them by address: have that filter leave a header and name it in identity.consumer"
}

// byConsumer returns the given policies that count by consumer.
func (c *conversion) byConsumer(policies []string) (able []string) {
	var others []string
	for _, p := range c.r.b.Set.Policies {
		switch {
		case !slices.Contains(policies, p.Name):
		case slices.Contains(p.Partition, "consumer"):
			able = append(able, p.Name)
		default:
			others = append(others, p.Name)
		}
	}
	if len(others) > 0 {
		c.addRemark("these do not count by consumer and go on to limit this consumer, in Kong they do not: " +
			strings.Join(others, ", "))
	}
	return able
}

// addOverride makes the plugin of a consumer a limit of its own under the policies that the plugin
// would otherwise run as.
func (c *conversion) addOverride() {
	// Find the policies that the consumer's limit overrides.
	var policies []string
	for i := range c.r.instances {
		other := &c.r.instances[i]
		if other.name == c.of.name && other.consumer+other.groups == "" &&
			(c.of.route == "" || other.route == c.of.route) && (c.of.service == "" || other.service == c.of.service) {
			policies = append(policies, other.policies...)
		}
	}
	if len(policies) == 0 {
		c.impossible = "only this consumer has a limit there: write a policy for all consumers, which it can override"
		return
	}
	policies = c.byConsumer(policies)
	if len(policies) == 0 {
		c.impossible = "no policy there counts by consumer, so that none can have a limit of its own"
		return
	}
	// Find the consumer's keys.
	var keys []string
	for _, t := range c.r.consumers {
		if consumerName(t) == c.of.consumer || t.Get("id").Text() == c.of.consumer {
			for _, credential := range t.Get("keyauth_credentials").Items() {
				keys = append(keys, credential.Get("key").Text())
			}
		}
	}
	if len(keys) == 0 {
		c.impossible = "the file has no key of this consumer: weir consumers override KEY " + policies[0] +
			" gives it its limit"
		return
	}
	// Weir's counters differ from Kong's if there are several.
	if len(policies) > 1 {
		c.addRemark("Kong has one counter of this consumer for all routes, Weir has one counter for each policy")
	}
	if len(keys) > 1 {
		c.addRemark("Kong has one counter for all keys of the consumer, Weir has one counter for each key")
	}
	// Add an override for each key.
	limits := make([]importer.Limit, len(c.limits))
	for i, l := range c.limits {
		limits[i] = l.limit
	}
	source := c.r.b.Set.Identity.Consumer[0].String()
	for _, key := range keys {
		c.r.b.Override(importer.Override{Consumer: key, Source: source, Policies: policies, Limits: limits})
	}
	c.names = policies
}
