package fromenvoy

import (
	"slices"
	"strings"

	"github.com/weir-proxy/weir/controlplane/internal/offline/importer"
)

// descriptor is the result of a list of actions: the entries in their order, and the requests for
// which the actions make it.
type descriptor struct {
	entries []value
	match   importer.Match
	remarks []string
	// impossible is the reason why Weir cannot make it; empty if it can.
	impossible string
}

// value is an entry of a descriptor: a fixed text, or a part of the request.
type value struct {
	key string
	// text is fixed if part is empty.
	text, part string
	remark     string
}

// descriptorsOf returns the descriptors that an element of rate_limits makes in a scope. An action
// that skips an absent header makes two descriptors.
func descriptorsOf(t *importer.Tree, in *scope) []descriptor {
	all := []descriptor{{match: in.match, remarks: in.remarks, impossible: in.impossible}}
	for _, action := range t.Get("actions").Items() {
		var next []descriptor
		for _, d := range all {
			next = append(next, d.withAction(action, in)...)
		}
		if len(next) > maxDescriptors {
			return []descriptor{{impossible: "its actions have too many combinations"}}
		}
		all = next
	}
	return all
}

// maxDescriptors bounds the descriptors of one element.
const maxDescriptors = 64

// withAction returns the descriptors after one more action.
func (d descriptor) withAction(action *importer.Tree, in *scope) []descriptor {
	d.entries, d.remarks = slices.Clone(d.entries), slices.Clone(d.remarks)
	fields := action.Fields()
	if len(fields) != 1 {
		d.impossible = importer.Join("; ", d.impossible, "an action has not exactly one field")
		return []descriptor{d}
	}
	kind, t := fields[0].Name, fields[0].Value
	switch kind {
	case "request_headers":
		return d.withHeader(t)
	case "header_value_match":
		return []descriptor{d.headerValue(t)}
	}
	v, reason := entryOf(kind, t, in)
	d.entries = append(d.entries, v)
	d.impossible = importer.Join("; ", d.impossible, reason)
	return []descriptor{d}
}

// withHeader adds the value of a header.
func (d descriptor) withHeader(t *importer.Tree) []descriptor {
	name := strings.ToLower(t.Get("header_name").Text())
	v := value{key: t.Get("descriptor_key").Text(), part: "header:" + name}
	switch name {
	case ":path":
		v.part, v.remark = "path", "Envoy's :path has the query too, Weir's path has not"
	case ":method":
		v.part = "method"
	case ":authority", "host":
		v.part, v.remark = "host", "Weir's host has no port"
	}
	without := d
	d.entries = append(slices.Clone(d.entries), v)
	if !t.Get("skip_if_absent").Is() || !strings.HasPrefix(v.part, "header:") {
		return []descriptor{d}
	}
	without.match.Headers = append(slices.Clone(d.match.Headers), importer.Header{Name: name, Op: "absent"})
	return []descriptor{d, without}
}

// headerValue adds a fixed text for requests whose headers meet conditions.
func (d descriptor) headerValue(t *importer.Tree) descriptor {
	// Read the conditions. expect_match: false inverts them.
	d.entries = append(d.entries,
		value{key: t.Get("descriptor_key").Or("header_match"), text: t.Get("descriptor_value").Text()})
	conditions := t.Get("headers").Items()
	expected := t.Get("expect_match")
	negative := expected.Exists() && !expected.Is()
	for _, c := range conditions {
		h, method, reason := headerMatch(c)
		if negative {
			switch {
			case len(conditions) == 1 && reason == "" && h.Op == "present":
				h.Op = "absent"
			case len(conditions) == 1 && reason == "" && h.Op == "absent":
				h.Op = "present"
			default:
				reason = "Weir has no condition that headers do not match (expect_match: false)"
			}
		}
		// Add the condition to the match.
		switch {
		case reason != "":
			d.impossible = importer.Join("; ", d.impossible, reason)
		case method != "" && len(d.match.Methods) > 0 && !slices.Contains(d.match.Methods, method):
			d.impossible = importer.Join("; ", d.impossible, "its conditions on the method exclude each other")
		case method != "":
			d.match.Methods = []string{method}
		default:
			d.match.Headers = append(slices.Clone(d.match.Headers), h)
		}
	}
	return d
}

// entryOf returns the entry of an action that has neither conditions nor cases.
func entryOf(kind string, t *importer.Tree, in *scope) (v value, reason string) {
	v.key = t.Get("descriptor_key").Or(kind)
	switch kind {
	case "remote_address":
		v.part = "client_ip"
	case "masked_remote_address":
		v.part = "client_ip"
		if t.Get("v4_prefix_mask_len").Or("32") != "32" {
			v.remark = "Weir counts each IPv4 address by itself, Envoy networks of " +
				t.Get("v4_prefix_mask_len").Text() + " bits"
		}
	case "generic_key":
		v.text = t.Get("descriptor_value").Text()
	case "query_parameters":
		v.part = "query:" + t.Get("query_parameter_name").Text()
	case "destination_cluster":
		v.text = in.cluster
		if in.cluster == "" {
			return v, "the upstream cluster is not fixed in the route: use a route for each, or generic_key"
		}
	case "metadata", "dynamic_metadata":
		return metadataEntry(v, t)
	case "source_cluster":
		return v, "Weir does not know Envoy's own --service-cluster: use generic_key"
	default:
		return v, "Weir has no counterpart of the action " + kind
	}
	return v, ""
}

// metadataEntry returns the entry for a claim that jwt_authn has verified, in the place where Weir
// reads it.
func metadataEntry(v value, t *importer.Tree) (value, string) {
	key := t.Get("metadata_key")
	var path []string
	for _, segment := range key.Get("path").Items() {
		path = append(path, segment.Get("key").Text())
	}
	if key.Get("key").Text() != "envoy.filters.http.jwt_authn" || len(path) < 2 {
		return v, "Weir has no part of a partition for metadata: have the filter that sets it leave a header"
	}
	v.part = "jwt:" + strings.Join(path[1:], ".")
	if path[0] != "payload" {
		v.remark = "set payload_in_metadata of jwt_authn to payload"
	}
	return v, ""
}

// fixValue restricts a descriptor to a text of one entry. If the entry is a part of the request, it
// adds a condition on the request. is is false if the entry has another text. reason is set if Weir
// has no such condition.
func (d *descriptor) fixValue(v value, text string) (is bool, reason string) {
	name, isHeader := strings.CutPrefix(v.part, "header:")
	switch {
	case v.part == "":
		return v.text == text, ""
	case isHeader:
		d.match.Headers = append(slices.Clone(d.match.Headers), importer.Header{Name: name, Op: "equals", Value: text})
	case v.part == "client_ip":
		network, ok := importer.ParseNetwork(text)
		if !ok || len(d.match.ClientIPs) > 0 {
			return true, text + " is no address"
		}
		d.match.ClientIPs = []string{network.String()}
	case v.part == "method" && len(d.match.Methods) == 0:
		d.match.Methods = []string{text}
	case v.part == "path" && len(d.match.Paths) == 0:
		d.match.Paths = []string{text}
	case v.part == "host" && len(d.match.Hosts) == 0:
		d.match.Hosts = []string{text}
	default:
		return true, "Weir has no condition that " + v.part + " is " + text + " there"
	}
	return true, ""
}
