package policy

// Plugin is the filter's configuration in Envoy.
type Plugin struct {
	// ControlPlane is nil for a filter that works alone.
	ControlPlane *ControlPlane
	// NodeID names the node; empty for Envoy's own node id. Zone is its location, for operators.
	NodeID, Zone string
	// Keys is the number of buckets that the node keeps.
	Keys int
	// Set is the inline policy set. Without a control plane it is the only set; with a control
	// plane it is used until the first answer.
	Set *Set
}

// ControlPlane says how to reach the control plane.
type ControlPlane struct {
	// Cluster is the Envoy cluster; Authority the Host header.
	Cluster, Authority string
	// TokenEnv names the environment variable that holds the node token.
	TokenEnv string
}

// Bounds and default of table.keys.
const (
	minKeys     = 1024
	maxKeys     = 4 << 20
	defaultKeys = 65536
)

// ParsePlugin is ParseJSON for the configuration that Envoy passes. A message that is not one of
// the wrappers is passed as its encoding. The usual mistake is a Struct, which is easy to write in
// YAML.
func ParsePlugin(raw []byte) (Node, error) {
	doc, err := ParseJSON(raw)
	if err != nil && isStruct(raw) {
		err = Problems{{Reason: `is a google.protobuf.Struct: write {"@type": type.googleapis.com/google.protobuf.StringValue, value: '...'} with the JSON as value`}}
	}
	return doc, err
}

// isStruct reports whether b begins like an encoded google.protobuf.Struct: with a field that has a
// name and a value.
func isStruct(b []byte) bool {
	const field, name, value = 1<<3 | 2, 1<<3 | 2, 2<<3 | 2
	at := 1
	for at < len(b) && b[at] >= 0x80 { // the length of the field
		at++
	}
	at++
	if len(b) == 0 || b[0] != field || at+1 >= len(b) || b[at] != name {
		return false
	}
	end := at + 2 + int(b[at+1])
	return end < len(b) && b[end] == value
}

// DecodePlugin reads and validates the filter's configuration. The error is of type Problems and
// lists every problem.
func DecodePlugin(doc Node) (*Plugin, error) { return DecodePluginEach(doc, nil) }

// DecodePluginEach is DecodePlugin, but passes the inline set's policies to each, in their order,
// and does not keep them: ten thousand policies take several times the memory of their snapshot.
// The policies are valid only if there is no error. A policy is valid until each returns.
func DecodePluginEach(doc Node, each func(*Policy)) (*Plugin, error) {
	r := &reader{each: each}
	p := &Plugin{Keys: defaultKeys}
	// Read the fields of the configuration.
	r.readMap("", doc,
		field{"control_plane", func(path string, n Node) {
			if n.Kind != Null {
				p.ControlPlane = r.readControlPlane(path, n)
			}
		}},
		field{"node", func(path string, n Node) {
			r.readMap(path, n,
				field{"id", func(path string, n Node) { p.NodeID = r.readLabel(path, n) }},
				field{"zone", func(path string, n Node) { p.Zone = r.readLabel(path, n) }},
			)
		}},
		field{"table", func(path string, n Node) {
			r.readMap(path, n, field{"keys", func(path string, n Node) {
				keys := int64(defaultKeys)
				r.readInteger(path, n, minKeys, maxKeys, &keys)
				p.Keys = int(keys)
			}})
		}},
		field{"policyset", func(path string, n Node) {
			if n.Kind != Null {
				p.Set = r.readSet(path, n)
			}
		}},
	)
	// It must have a source of policies.
	if len(r.problems) == 0 && p.ControlPlane == nil && p.Set == nil {
		r.failAt("", "has neither control_plane nor policyset: there would be nothing to limit")
	}
	if len(r.problems) > 0 {
		return nil, r.problems
	}
	return p, nil
}

func (r *reader) readControlPlane(path string, n Node) *ControlPlane {
	cp := &ControlPlane{Authority: "weir"}
	r.readMap(path, n,
		field{"cluster", func(path string, n Node) { cp.Cluster, _ = r.readText(path, n) }},
		field{"authority", func(path string, n Node) { cp.Authority, _ = r.readText(path, n) }},
		field{"token", func(path string, n Node) {
			r.readMap(path, n, field{"env", func(path string, n Node) { cp.TokenEnv, _ = r.readText(path, n) }})
			r.requireField(path, n, "env", ": name the environment variable that holds the node token")
		}},
	)
	r.requireField(path, n, "cluster", ": name the Envoy cluster of the control plane")
	r.requireField(path, n, "token", `: write "token": {"env": "WEIR_NODE_TOKEN"}`)
	return cp
}

// readLabel reads a name of printable ASCII, which may be empty.
func (r *reader) readLabel(path string, n Node) string {
	if n.Kind == String && n.Text == "" {
		return ""
	}
	text, _ := r.readText(path, n)
	for i := range len(text) {
		if text[i] <= ' ' || text[i] >= 0x7f {
			r.failAt(path, "must be of printable characters without spaces, not "+shorten(text))
			return ""
		}
	}
	return text
}
