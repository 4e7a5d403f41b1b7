package match

import (
	"strings"

	"github.com/weir-proxy/weir/shared/policy"
)

// Where Envoy keeps what its own filters know of a request.
const (
	// clusterPath is the name of the cluster that the route chooses.
	clusterPath = "xds\x00cluster_name"
	// DetailsPath is how the response came about, WholeResponse what it is for one that an upstream
	// has answered to its end.
	DetailsPath   = "response\x00code_details"
	WholeResponse = "via_upstream"
)

// PropertyPath is the path by which Properties are asked for a source; empty if they are not.
func PropertyPath(s policy.Source) string {
	path, separator := s.Kind.Property()
	if path == "" {
		return ""
	}
	return path + strings.ReplaceAll(s.Name, string(rune(separator)), "\x00")
}

// foundBy gives a cost that is found in metadata the path of its property for a name.
func foundBy(c *policy.Commit) *policy.Commit {
	if c.By == policy.CommitMetadata {
		c.Name = PropertyPath(policy.Source{Kind: policy.SourceMetadata, Name: c.Name})
	}
	return c
}

// upstream asks Envoy for the cluster that the request goes to; nil if it goes to none.
func (e *encoder) upstream(a *Attributes) []byte {
	if a.Properties == nil {
		return nil
	}
	e.property = append(e.property[:0], clusterPath...)
	return a.Properties.Property(e.property)
}

// ask asks Envoy for the value of a source; nil if there is none, or if Envoy is not asked for the
// kind.
func (e *encoder) ask(kind policy.SourceKind, name []byte, a *Attributes) []byte {
	path, separator := kind.Property()
	if a.Properties == nil || path == "" {
		return nil
	}
	// The path is that of PropertyPath, made without garbage.
	e.property = append(e.property[:0], path...)
	for _, c := range name {
		if c == separator {
			c = 0
		}
		e.property = append(e.property, c)
	}
	return a.Properties.Property(e.property)
}
