package cli

import "testing"

// Zeros alone are the key of no caller; zeros within a hash are its own.
func TestNoKeyIsADash(t *testing.T) {
	for hash, want := range map[string]string{
		"00000000000000000000000000000000": "-", "00000000000000000000000000000100": "00000000000000000000000000000100",
	} {
		if got := keyText(hash); got != want {
			t.Errorf("%s is printed %s, want %s", hash, got, want)
		}
	}
}
