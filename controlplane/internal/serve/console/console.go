// Package console holds the built files of the console, which console/ at the top of the tree is
// the source of. The build tag noconsole leaves them out.
package console

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io/fs"
	"path"
	"sync"
)

// Index is the name of the page that loads all other files.
const Index = "index.html"

// File is one built file.
type File struct {
	ContentType string
	// Body is the file as it is, Zipped the same compressed by gzip.
	Body, Zipped []byte
	// Lasting: the name has a hash of the content, so browsers may keep the file.
	Lasting bool
}

// contentTypes maps the extension of each file that the build makes to its type.
var contentTypes = map[string]string{
	".html": "text/html; charset=utf-8", ".js": "text/javascript; charset=utf-8",
	".css": "text/css; charset=utf-8", ".svg": "image/svg+xml",
}

// Files returns the built files by name: none in a build without the console. There are no folders,
// so a name is looked up and never opened as a path. The first call compresses them; a control
// plane whose console is not opened does not spend that time.
var Files = sync.OnceValues(func() (map[string]File, error) { return filesOf(built) })

func filesOf(from fs.FS) (map[string]File, error) {
	files := map[string]File{}
	entries, err := fs.ReadDir(from, ".")
	if err != nil {
		return nil, err
	}
	for _, entry := range entries {
		body, err := fs.ReadFile(from, entry.Name())
		if err != nil {
			return nil, err
		}
		kind, known := contentTypes[path.Ext(entry.Name())]
		if !known {
			return nil, fmt.Errorf("the console has %s, which is of no known kind", entry.Name())
		}
		files[entry.Name()] = File{kind, body, zipFile(body), entry.Name() != Index}
	}
	return files, nil
}

// zipFile compresses a file; writing to memory does not fail.
func zipFile(body []byte) []byte {
	var out bytes.Buffer
	w, _ := gzip.NewWriterLevel(&out, gzip.BestCompression)
	w.Write(body)
	w.Close()
	return out.Bytes()
}
