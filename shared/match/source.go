package match

import (
	"strings"

	"github.com/weir-proxy/weir/shared/policy"
)

// Paths of properties in which Envoy stores the knowledge of its own filters about a request.
const (
	// clusterPath is the name of the cluster that the route chooses.
	clusterPath = "xds\x00cluster_name"
	// DetailsPath is the reason of the response, WholeResponse its value for a response that an
	// upstream has sent to its end.
	DetailsPath   = "response\x00code_details"
	WholeResponse = "via_upstream"
)

// PropertyPath returns the path of a source in Properties; empty if the source is not there.
func PropertyPath(s policy.Source) string {
	path, separator := s.Kind.Property()
	if path == "" {
		return ""
	}
	return path + strings.ReplaceAll(s.Name, string(rune(separator)), "\x00")
}

// foundBy changes the name of a cost that is found in metadata to the path of its property.
func foundBy(c *policy.Commit) *policy.Commit {
	if c.By == policy.CommitMetadata {
		c.Name = PropertyPath(policy.Source{Kind: policy.SourceMetadata, Name: c.Name})
	}
	return c
}

// upstreamCluster asks Envoy for the cluster that the request goes to; nil if it goes to none.
func (e *encoder) upstreamCluster(a *Attributes) []byte {
	if a.Properties == nil {
		return nil
	}
	e.property = append(e.property[:0], clusterPath...)
	return a.Properties.Property(e.property)
}

// askEnvoy asks Envoy for the value of a source; nil if there is none, or if Envoy does not have
// this kind.
func (e *encoder) askEnvoy(kind policy.SourceKind, name []byte, a *Attributes) []byte {
	path, separator := kind.Property()
	if a.Properties == nil || path == "" {
		return nil
	}
	// The path equals PropertyPath, made without garbage.
	e.property = append(e.property[:0], path...)
	for _, c := range name {
		if c == separator {
			c = 0
		}
		e.property = append(e.property, c)
	}
	return a.Properties.Property(e.property)
}
