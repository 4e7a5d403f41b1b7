package shareddata

// Version tells one content of a Document from any other.
type Version [16]byte

// Document is a message that one VM publishes and all others follow: the version is read often, the
// message only when the version has changed.
type Document struct {
	data             Data
	version, message Key
	// seen is the version that this VM published or took in last.
	seen Version
}

// NewDocument is the document of two names in the space.
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

// News returns the published message if this VM has neither published nor taken in its version. The
// message is valid until the next call into the host. Take confirms that it has been taken in.
func (d *Document) News() (v Version, message []byte, news bool) {
	v, ok := d.Published()
	if !ok || v == d.seen {
		return v, nil, false
	}
	message, _, news = d.data.Get(d.message[:])
	return v, message, news
}

// Take confirms that this VM has taken in a version, or cannot: News returns no message for it
// again.
func (d *Document) Take(v Version) { d.seen = v }

// Publish hands a message to all VMs. The message goes first: a version is only ever seen with its
// message or a newer one.
func (d *Document) Publish(v Version, message []byte) {
	d.data.Put(d.message[:], message)
	d.data.Put(d.version[:], v[:])
}
