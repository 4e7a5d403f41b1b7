package fromenvoy

import (
	"bytes"
	"strings"

	"github.com/weir-proxy/weir/controlplane/internal/offline/importer"
)

// Istio reads the manifests of a mesh: the EnvoyFilters that have Envoy limit, or ask
// envoyproxy/ratelimit, and the ConfigMaps with the configurations of that service. The error is an
// *importer.SyntaxError.
func Istio(files []importer.File) (*importer.Result, error) {
	manifests, source, err := importer.Manifests(files)
	if err != nil {
		return nil, err
	}
	m := mesh{service: service{reader: reader{used: map[*importer.Tree]bool{}}, domains: map[string]bool{}}}
	m.b.Set.Source = source
	for _, doc := range manifests {
		if err := m.readManifest(doc); err != nil {
			return nil, err
		}
	}
	m.noteOwnLimits()
	m.native = true
	for _, doc := range m.configs {
		m.readDomain(doc)
	}
	m.judgeFilters()
	return m.b.Result()
}

// mesh reads the configuration of a mesh.
type mesh struct {
	service
	// configs are the configurations of the rate limit service.
	configs []*importer.Tree
}

// readManifest reads a manifest. Other kinds hold no limit.
func (m *mesh) readManifest(doc *importer.Tree) error {
	switch doc.Get("kind").Text() {
	case "ConfigMap":
		for _, f := range doc.Get("data").Fields() {
			if err := m.readEmbedded(f); err != nil {
				return err
			}
		}
	case "EnvoyFilter":
		for _, p := range doc.Path("spec", "configPatches").Items() {
			m.readPatch(p)
		}
	}
	return nil
}

// readEmbedded reads a file of a ConfigMap, if it is a configuration of the rate limit service. Its
// items have lines of the manifest: a text of several lines begins below its name.
func (m *mesh) readEmbedded(f importer.Field) error {
	text := f.Value.Text()
	if !strings.Contains(text, "domain:") || !strings.Contains(text, "descriptors:") {
		return nil
	}
	above := f.Value.Line()
	if !strings.Contains(text, "\n") {
		above--
	}
	padded := append(bytes.Repeat([]byte("\n"), max(above, 0)), text...)
	documents, err := importer.ParseTrees(importer.File{Name: f.Value.File(), Text: padded})
	m.configs = append(m.configs, documents...)
	return err
}

// readPatch reads the parts that a patch adds to the configurations of Envoys.
func (m *mesh) readPatch(t *importer.Tree) {
	in := &scope{}
	vhost := t.Path("match", "routeConfiguration", "vhost")
	switch t.Get("applyTo").Text() {
	case "VIRTUAL_HOST":
		in = patchedHost(vhost)
		m.scopes = append(m.scopes, in)
	case "HTTP_ROUTE":
		host := patchedHost(vhost)
		in = &scope{kind: "route", name: vhost.Path("route", "name").Text(), vhost: host, match: host.match}
		if in.name != "" {
			in.impossible = "route " + in.name + " belongs to a VirtualService, which is not read: " +
				"write the policy by hand, with its paths"
		}
		m.scopes = append(m.scopes, host, in)
	}
	m.walkValue(t.Path("patch", "value"), in, t.Get("applyTo").Text() == "HTTP_FILTER")
}

// patchedHost returns the virtual host of a patch: host:port at a gateway, or a host of a sidecar,
// which takes all requests that reach it.
func patchedHost(vhost *importer.Tree) *scope {
	s := &scope{kind: "virtual host", name: vhost.Get("name").Text()}
	host, _, _ := strings.Cut(s.name, ":")
	if host != "" && host != "*" && !strings.Contains(host, "|") {
		s.match.Hosts = []string{strings.ToLower(host)}
	}
	return s
}

// judgeFilters gives the filters their verdicts, and the actions that fill descriptors.
func (m *mesh) judgeFilters() {
	for _, f := range m.filters {
		domain := f.at.Get("domain").Text()
		switch {
		case f.kind == localLimit:
			m.readLocal(f)
		case f.kind != "RateLimit":
			m.b.Not(f.at, f.kind+" of "+f.scope.String(), others[f.kind])
		case m.domains[domain]:
			m.b.Exactly(f.at, "ratelimit filter for domain "+domain, "")
		default:
			m.b.Not(f.at, "ratelimit filter for domain "+domain,
				"no ConfigMap of the files configures the domain: add the ConfigMap of the rate limit service")
		}
	}
	for _, s := range m.scopes {
		for _, t := range s.limits {
			what := "rate_limits of " + s.String() + ": " + t.Get("actions").Short()
			switch {
			case m.used[t]:
				m.b.Exactly(t, what, "")
			case s.impossible != "":
				m.b.Not(t, what, s.impossible)
			default:
				m.b.Not(t, what, "no imported limit uses it")
			}
		}
	}
}
