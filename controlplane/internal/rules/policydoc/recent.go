package policydoc

import (
	"crypto/sha256"
	"sync"

	"github.com/weir-proxy/weir/shared/policy"
)

// recentFrom is the size in bytes from which a document is remembered: an edit of one policy reads
// the whole document before and after, and the next edit reads it again.
const recentFrom = 64 << 10

// recent has the last two large documents, by their checksums. Nodes of documents are never
// changed, so they can be shared.
var recent struct {
	sync.Mutex
	next int
	kept [2]struct {
		sum  [sha256.Size]byte
		node policy.Node
	}
}

// parseRemembered parses like Parse a document that may have been read a moment ago.
func parseRemembered(doc []byte, format Format) (policy.Node, error) {
	if len(doc) < recentFrom {
		return parseText(doc, format)
	}
	sum := sha256.Sum256(append([]byte(format+"\n"), doc...))
	recent.Lock()
	for i := range recent.kept {
		if k := &recent.kept[i]; k.sum == sum {
			recent.next = 1 - i
			defer recent.Unlock()
			return k.node, nil
		}
	}
	recent.Unlock()
	node, err := parseText(doc, format)
	if err != nil {
		return node, err
	}
	recent.Lock()
	defer recent.Unlock()
	k := &recent.kept[recent.next]
	k.sum, k.node, recent.next = sum, node, 1-recent.next
	return node, nil
}
