package policydoc

import (
	"strings"

	"golang.org/x/net/idna"

	"github.com/weir-proxy/weir/shared/policy"
)

// spellHosts writes host names beyond ASCII in Punycode, the form that requests use. Its tables are
// larger than the whole filter module, so only the control plane does it. An invalid name stays
// unchanged: the decoder of policy sets refuses it.
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

// spellHost writes a host in Punycode, and keeps a leading "*." as it is.
func spellHost(node *policy.Node) {
	wildcard, name := "", node.Text
	if rest, isWild := strings.CutPrefix(name, "*."); isWild {
		wildcard, name = "*.", rest
	}
	if node.Kind != policy.String || isASCII(name) {
		return
	}
	if spelled, err := idna.Lookup.ToASCII(name); err == nil {
		node.Text = wildcard + spelled
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
