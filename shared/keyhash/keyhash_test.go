package keyhash_test

import (
	"bytes"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/weir-proxy/weir/shared/keyhash"
)

var anyKey = rapid.Custom(func(t *rapid.T) keyhash.Key {
	return keyhash.Key(rapid.SliceOfN(rapid.Byte(), keyhash.Size, keyhash.Size).Draw(t, "key"))
})

func TestParseReadsWhatIsWritten(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := anyKey.Draw(t, "want")
		if got, err := keyhash.Parse(want.String()); err != nil || got != want {
			t.Fatalf("%x, %v: want %x", got, err, want)
		}
	})
}

func TestParseRefusesAnythingElse(t *testing.T) {
	digit := func(n int) string { return strings.Repeat("0", n) }
	for _, text := range []string{
		"", "alice", digit(30), digit(31), digit(33), digit(34), digit(64), digit(31) + "g", digit(30) + " 0",
		"0x" + digit(30),
	} {
		if got, err := keyhash.Parse(text); err == nil || !strings.Contains(err.Error(), text) ||
			got != (keyhash.Key{}) {
			t.Errorf("%q: %x, %v", text, got, err)
		}
	}
}

func TestLessIsTheOrderOfBytes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b := anyKey.Draw(t, "a"), anyKey.Draw(t, "b")
		if a.Less(&b) != (bytes.Compare(a[:], b[:]) < 0) {
			t.Fatalf("%x < %x is %v", a, b, a.Less(&b))
		}
	})
}
