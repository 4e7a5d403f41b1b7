package keyhash_test

import (
	"encoding/hex"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/weir-proxy/weir/controlplane/internal/keyhash"
)

func TestParseReadsWhatIsWritten(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := [keyhash.Size]byte(rapid.SliceOfN(rapid.Byte(), keyhash.Size, keyhash.Size).Draw(t, "hash"))
		if got, err := keyhash.Parse(hex.EncodeToString(want[:])); err != nil || got != want {
			t.Fatalf("%x, %v: want %x", got, err, want)
		}
	})
}

func TestParseRefusesAnythingElse(t *testing.T) {
	digit := func(n int) string { return strings.Repeat("0", n) }
	for _, text := range []string{"", "alice", digit(30), digit(31), digit(33), digit(34), digit(64), digit(31) + "g", digit(30) + " 0", "0x" + digit(30)} {
		if got, err := keyhash.Parse(text); err == nil || !strings.Contains(err.Error(), text) || got != [keyhash.Size]byte{} {
			t.Errorf("%q: %x, %v", text, got, err)
		}
	}
}
