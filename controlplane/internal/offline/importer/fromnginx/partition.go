package fromnginx

import (
	"errors"
	"slices"
	"strconv"
	"strings"

	"github.com/weir-proxy/weir/controlplane/internal/offline/importer"
)

func itoa(n int) string { return strconv.Itoa(n) }

// fixedParts are nginx's variables that are a part of a partition.
var fixedParts = map[string]string{
	"binary_remote_addr": "client_ip", "remote_addr": "client_ip", "host": "host", "http_host": "host",
	"server_name": "host", "uri": "path", "document_uri": "path", "request_uri": "path", "request_method": "method",
	"proxy_protocol_addr": "client_ip",
}

// differs describes the difference of a variable.
var differs = map[string]string{
	"http_host":           "Weir's host has no port",
	"request_uri":         "$request_uri has the query too, Weir's path has not",
	"server_name":         "$server_name is the first name of the server, Weir's host is the host of the request",
	"proxy_protocol_addr": "let Envoy's proxy_protocol listener filter find the address",
}

// readPartition turns a key into the parts of a partition. It ignores fixed text, which is the same
// for all requests.
func (r *reader) readPartition(key string) (parts []string, remark string, err error) {
	for _, found := range aVariable.FindAllStringSubmatch(key, -1) {
		name := found[1]
		part := fixedParts[name]
		for prefix, kind := range map[string]string{
			"http_": "header:", "cookie_": "cookie:", "arg_": "query:", "jwt_claim_": "jwt:",
		} {
			if rest, is := strings.CutPrefix(name, prefix); is && part == "" {
				if kind == "header:" {
					rest = strings.ReplaceAll(rest, "_", "-")
				}
				part = kind + rest
			}
		}
		if part == "" {
			return nil, "", errors.New("Weir has no part of a partition like $" + name +
				": have a filter before it leave a header, and count by that")
		}
		remark = importer.Join("; ", remark, differs[name])
		r.byAddress = r.byAddress || part == "client_ip"
		if !slices.Contains(parts, part) {
			parts = append(parts, part)
		}
	}
	return parts, remark, nil
}

// noteLeftovers notes the items that are not limits themselves but concern limits.
func (r *reader) noteLeftovers() {
	// The zones.
	for _, z := range r.zones {
		switch {
		case !z.used:
			r.b.Say(z.item(importer.Exact, "no "+"limit_"+z.kind+" uses it"))
		case len(z.policies) == 0:
			r.b.Say(z.item(importer.NotPossible, "each limit that uses it is left out"))
		default:
			r.b.Say(z.item(importer.Exact, "", z.policies...))
		}
	}
	// The maps and geo blocks.
	for _, v := range r.variables {
		switch {
		case v.used && v.refused != "":
			r.b.Say(v.item(importer.NotPossible, v.refused))
		case v.used:
			r.b.Say(v.item(importer.Exact, "followed for the keys that use it"))
		case v.inside:
			r.b.Say(v.item(importer.NotPossible, notInside))
		}
	}
	// The directives for the client's address, and the settings of each level.
	for _, p := range r.realIP {
		if r.byAddress {
			r.b.Say(p.item(importer.Approximate, "set identity.client_ip.trusted_hops to the number of proxies "+
				"between the client and Envoy"))
		}
	}
	for _, l := range r.levels {
		for name, p := range l.set {
			item := settingOf(name, p)
			if item.Verdict == importer.Exact && r.isForNone(l, name) {
				item = p.item(importer.NotPossible, "each limit that it is for is left out")
			}
			r.b.Say(item)
		}
	}
}

// isForNone reports whether each limit that a directive beside limits is for is left out.
func (r *reader) isForNone(l *level, name string) bool {
	_, kind, _ := strings.Cut(name, "_")
	kind, _, _ = strings.Cut(kind, "_")
	found := false
	for _, at := range r.levels {
		if at != l && !isBelow(at, []*level{l}) {
			continue
		}
		for _, u := range at.inForce(kind) {
			if slices.Contains(u.written, at) {
				return false
			}
			found = true
		}
	}
	return found
}

// settingOf returns the verdict on a directive that concerns limits.
func settingOf(name string, p place) importer.Item {
	switch name {
	case "limit_req_status", "limit_conn_status", "limit_req_dry_run", "limit_conn_dry_run":
		return p.item(importer.Exact, "")
	case "limit_req_log_level", "limit_conn_log_level":
		return p.item(importer.Exact, "not needed: Weir counts refusals and reports who was refused (weir why)")
	}
	return p.item(importer.NotPossible, "this directive is not read")
}
