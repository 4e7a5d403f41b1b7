package enforcement

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/wire"
)

// Encode returns the document as stores keep it, beside its revision.
func (d Document) Encode() ([]byte, error) { return json.Marshal(d) }

// Decode reads what Encode made. Empty text is the zero document.
func Decode(revision uint64, text []byte) (d Document, err error) {
	if revision == 0 {
		return d, nil
	}
	err = json.Unmarshal(text, &d)
	if err == nil {
		d.Revision = revision
		_, err = d.message()
	}
	if err != nil {
		return Document{}, fmt.Errorf("the stored enforcement is damaged: %w", err)
	}
	return d, nil
}

// byKey returns the bans in the order of their keys, each once.
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

// is reports whether two documents were made by the same changes.
func (d Document) is(other Document) bool {
	return d.Orders.ID == other.Orders.ID && d.Bans.ID == other.Bans.ID && d.Freed.ID == other.Freed.ID
}
