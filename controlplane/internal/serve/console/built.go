//go:build !noconsole

package console

import (
	"embed"
	"io/fs"
)

//go:embed dist
var dist embed.FS

var built = func() fs.FS {
	files, err := fs.Sub(dist, "dist")
	if err != nil { // Only a name that is no path fails.
		panic(err)
	}
	return files
}()
