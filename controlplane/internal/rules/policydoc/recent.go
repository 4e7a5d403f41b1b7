package policydoc

import (
	"crypto/sha256"
	"sync"

	"github.com/weir-proxy/weir/shared/policy"
)

// recentFrom is the size from which a document is remembered: an edit of one policy reads the whole
// of it before and after, and the next edit again.
const recentFrom = 64 << 10

// recent are the large documents that were read last, by what they hold. Nodes of documents are
// never changed, so that they can be shared.
var recent struct {
	sync.Mutex
	next int
	kept [2]struct {
		sum  [sha256.Size]byte
		node policy.Node
	}
}

// remembered is Parse of a document that may have been read a moment ago.
func remembered(doc []byte, format Format) (policy.Node, error) {
	if len(doc) < recentFrom {
		return parse(doc, format)
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
	node, err := parse(doc, format)
	if err != nil {
		return node, err
	}
	recent.Lock()
	defer recent.Unlock()
	k := &recent.kept[recent.next]
	k.sum, k.node, recent.next = sum, node, 1-recent.next
	return node, nil
}
