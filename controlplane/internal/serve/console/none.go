//go:build noconsole

package console

import "embed"

// built is empty.
var built embed.FS
