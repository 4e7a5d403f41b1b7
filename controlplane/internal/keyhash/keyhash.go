// Package keyhash reads the text of keyed hashes, by which buckets, consumers and API keys are known outside of messages.
package keyhash

import (
	"encoding/hex"
	"fmt"
)

// Size is a hash's length in bytes.
const Size = 16

// Parse reads what hex.EncodeToString made of a hash. Any other text is an error that quotes it.
func Parse(text string) (h [Size]byte, err error) {
	b, err := hex.DecodeString(text)
	if err != nil || len(b) != Size {
		return h, fmt.Errorf("%q is not a hash of %d bytes in hexadecimal", text, Size)
	}
	return [Size]byte(b), nil
}
