package fromenvoy

import (
	"github.com/weir-proxy/weir/controlplane/internal/offline/importer"
)

// readNode reads the limit of a node and notes its settings.
func (s *service) readNode(domain, what string, t *importer.Tree, way []step) {
	// Convert the limit. All items of the node get its verdict.
	limit := t.Get("rate_limit")
	names, remark, impossible := s.addLimit(domain, t, way)
	item := func(at *importer.Tree, what, remark string) {
		switch {
		case impossible != "":
			s.b.Not(at, what, impossible)
		case remark != "":
			s.b.Nearly(at, what, remark, names...)
		default:
			s.b.Exactly(at, what, "", names...)
		}
	}
	// The verdict on the limit, and on its fields.
	switch {
	case !limit.Exists():
		s.b.Exactly(t, what, "it has no limit of its own")
	case limit.Get("unlimited").Is():
		s.b.Exactly(t, what+": unlimited", "")
	default:
		text := limit.Get("requests_per_unit").Short() + " per " + limit.Get("unit").Short()
		item(t, what+": "+text, remark)
	}
	for _, f := range limit.Unread() {
		switch f.Name {
		case "name":
			s.b.Exactly(f.Value, what+": "+f.String(), "not needed: policies have names")
		case "replaces":
			item(f.Value, what+": "+f.String(),
				"Weir holds a call to both limits, the rate limit service only to this limit")
		default:
			s.b.Not(f.Value, what+": "+f.String(), "the import does not read this field")
		}
	}
	// The verdict on the fields of the node.
	for _, f := range t.Fields() {
		switch f.Name {
		case "key", "value", "rate_limit", "descriptors":
		case "shadow_mode", "share_threshold":
			item(f.Value, what+": "+f.String(), "")
		case "detailed_metric", "value_to_metric":
			s.b.Exactly(f.Value, what+": "+f.String(), "not needed: weir_decisions counts by policy, weir top by key")
		case "quota_mode":
			item(f.Value, what+": "+f.String(),
				"such limits refuse only if all of them are over; the policy is in shadow")
		default:
			s.b.Not(f.Value, what+": "+f.String(), "the import does not read this field")
		}
	}
}
