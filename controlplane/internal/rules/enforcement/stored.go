package enforcement

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/weir-proxy/weir/controlplane/internal/ground/docs"
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/wire"
)

// Kept stores the document in a store of documents. It implements Store.
type Kept struct{ In docs.Store }

// Enforcement implements Store.
func (k Kept) Enforcement(ctx context.Context, known uint64) (Document, error) {
	stored, _, err := k.In.Document(ctx, docs.Enforcement, known)
	if err != nil || stored.Revision == known {
		return Document{Revision: stored.Revision}, err
	}
	return decodeDocument(stored.Revision, stored.Value)
}

// WriteEnforcement implements Store.
func (k Kept) WriteEnforcement(ctx context.Context, w Write) error {
	text, err := json.Marshal(w.Document)
	if err != nil {
		return err
	}
	return k.In.WriteDocument(ctx, docs.Enforcement, docs.Write{
		Expected: w.Expected, Doc: docs.Doc{Revision: w.Document.Revision, Value: text}, Entries: w.Entries,
	})
}

// decodeDocument decodes a stored document.
func decodeDocument(revision uint64, text []byte) (d Document, err error) {
	if revision == 0 {
		return d, nil
	}
	err = json.Unmarshal(text, &d)
	if err == nil {
		d.Revision = revision
		_, err = d.nodeMessage()
	}
	if err != nil {
		return Document{}, fmt.Errorf("the stored enforcement is damaged: %w", err)
	}
	return d, nil
}

// byKey returns the bans sorted by their keys, each once.
func (b Bans) byKey() ([]wire.Ban, error) {
	var bans []wire.Ban
	for _, one := range b.List {
		key, err := keyhash.Parse(one.Key)
		if err != nil {
			return nil, err
		}
		bans = append(bans, wire.Ban{Key: key, Expires: unixMilli(one.Expires)})
	}
	slices.SortFunc(bans, func(a, b wire.Ban) int { return bytes.Compare(a.Key[:], b.Key[:]) })
	return bans, nil
}

// is reports whether two documents have the same changes.
func (d Document) is(other Document) bool {
	return d.Orders.ID == other.Orders.ID && d.Bans.ID == other.Bans.ID && d.Freed.ID == other.Freed.ID
}
