package policydoc

import (
	"strings"

	"golang.org/x/net/idna"

	"github.com/weir-proxy/weir/shared/policy"
)

// spellHosts writes the names of hosts beyond ASCII as requests have them, in Punycode. The tables
// for that are larger than the filter's whole module, so only the control plane does it. A name
// that is none stays as it is, for the reader of policy sets to refuse.
func spellHosts(node *policy.Node) {
	for i := range node.Items {
		item := &node.Items[i]
		if i < len(node.Keys) && node.Keys[i] == "hosts" && item.Kind == policy.List {
			for at := range item.Items {
				spellHost(&item.Items[at])
			}
			continue
		}
		spellHosts(item)
	}
}

func spellHost(node *policy.Node) {
	below, name := "", node.Text
	if rest, wild := strings.CutPrefix(name, "*."); wild {
		below, name = "*.", rest
	}
	if node.Kind != policy.String || isASCII(name) {
		return
	}
	if spelled, err := idna.Lookup.ToASCII(name); err == nil {
		node.Text = below + spelled
	}
}

func isASCII(text string) bool {
	for i := range len(text) {
		if text[i] >= 0x80 {
			return false
		}
	}
	return true
}
