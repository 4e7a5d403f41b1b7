package shareddata

import "github.com/weir-proxy/weir/shared/text"

// Version identifies the content of a Document.
type Version [16]byte

// Document is a message that one VM publishes and all other VMs read: the version is read often,
// the message only when the version has changed. The zero value is not ready; make a Document with
// NewDocument.
type Document struct {
	data             Data
	version, message Key
	// seen is the version that this VM last published or took.
	seen Version
}

// NewDocument returns the document of two names in the space.
func NewDocument(data Data, space Space, version, message Name) Document {
	return Document{data: data, version: space.Key(version), message: space.Key(message)}
}

// Published returns the version that is published now; false if there is none.
func (d *Document) Published() (v Version, ok bool) {
	value, _, found := d.data.Get(d.version[:])
	if !found || len(value) != len(v) {
		return v, false
	}
	return Version(value), true
}

// News returns the published message if this VM has neither published nor taken its version. The
// message is valid until the next call into the host. Take confirms that it was read. While another
// VM publishes, the message may be newer than the version; while two VMs publish, it may be older.
func (d *Document) News() (v Version, message []byte, news bool) {
	v, ok := d.Published()
	if !ok || v == d.seen {
		return v, nil, false
	}
	message, _, news = d.data.Get(d.message[:])
	return v, message, news
}

// Take confirms that this VM has read a version, or cannot read it: News returns no message for it
// again.
func (d *Document) Take(v Version) { d.seen = v }

// Publish gives a message to all VMs. The message is stored first: while one VM publishes, a
// version is only ever seen with its message or a newer message. Publish reports false if another
// VM published at the same moment, so that this version belongs to that VM's message: then this VM
// must publish again, under another version. The message is invalid afterwards.
func (d *Document) Publish(v Version, message []byte) (stands bool) {
	sum := text.NewHash64.Add(message)
	d.data.Put(d.message[:], message)
	d.data.Put(d.version[:], v[:])
	if published, ok := d.Published(); !ok || published != v {
		return true
	}
	message, _, _ = d.data.Get(d.message[:])
	return text.NewHash64.Add(message) == sum
}
