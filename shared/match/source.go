package match

import (
	"strings"

	"github.com/weir-proxy/weir/shared/policy"
)

// Where Envoy keeps what its own filters know of a request.
const (
	// metadataPath is before the name space of a filter.
	metadataPath = "metadata\x00filter_metadata\x00"
	// claimPath is before a claim of a verified token.
	claimPath  = metadataPath + "envoy.filters.http.jwt_authn\x00payload\x00"
	spiffePath = "connection\x00uri_san_peer_certificate"
	// clusterPath is the name of the cluster that the route chooses.
	clusterPath = "xds\x00cluster_name"
	// DetailsPath is how the response came about, WholeResponse what it is for one that an upstream
	// has answered to its end.
	DetailsPath   = "response\x00code_details"
	WholeResponse = "via_upstream"
)

// PropertyPath is the path by which Properties are asked for a claim, metadata or a SPIFFE id.
func PropertyPath(s policy.Source) string {
	switch s.Kind {
	case policy.SourceSPIFFE:
		return spiffePath
	case policy.SourceMetadata:
		return metadataPath + strings.ReplaceAll(s.Name, "/", "\x00")
	}
	return claimPath + strings.ReplaceAll(s.Name, ".", "\x00")
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

// ask asks Envoy for a claim, metadata or a SPIFFE id; nil if there is none.
func (e *encoder) ask(kind policy.SourceKind, name []byte, a *Attributes) []byte {
	if a.Properties == nil {
		return nil
	}
	// The path is that of PropertyPath, made without garbage: dots join the parts of a claim's
	// name, slashes those of metadata's.
	prefix, separator := claimPath, byte('.')
	switch kind {
	case policy.SourceSPIFFE:
		prefix, name = spiffePath, nil
	case policy.SourceMetadata:
		prefix, separator = metadataPath, '/'
	}
	e.property = append(e.property[:0], prefix...)
	for _, c := range name {
		if c == separator {
			c = 0
		}
		e.property = append(e.property, c)
	}
	return a.Properties.Property(e.property)
}
