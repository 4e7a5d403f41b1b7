package localstore_test

import (
	"bytes"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/weir-proxy/weir/controlplane/internal/store/localstore"
	"github.com/weir-proxy/weir/shared/wire"
)

// A file that a build of another protocol has written is refused with the remedy, and stays as it
// is, after an orderly end and after a crash.
func TestAFileOfAnotherProtocolIsRefused(t *testing.T) {
	protocol := func(number byte) func(string) error {
		return func(path string) error { return localstore.WriteProtocol(path, number) }
	}
	for _, c := range []struct {
		write func(path string) error
		want  error
	}{
		{protocol(wire.Protocol + 1), wire.ErrNewerStore},
		{protocol(wire.Oldest - 1), wire.ErrOlderStore},
		{localstore.WriteUnreleased, wire.ErrUnreleasedStore},
	} {
		for _, crashed := range []bool{false, true} {
			path := filepath.Join(t.TempDir(), "weir.db")
			if err := os.WriteFile(path, ofEverything(t, crashed), 0o600); err != nil {
				t.Fatal(err)
			}
			if err := c.write(path); err != nil {
				t.Fatal(err)
			}
			before, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			_, err = localstore.Open(filepath.Dir(path), slog.New(slog.DiscardHandler), localstore.Options{})
			after, _ := os.ReadFile(path)
			if !errors.Is(err, c.want) || !bytes.Equal(before, after) {
				t.Errorf("%v, want %v; changed: %v", err, c.want, !bytes.Equal(before, after))
			}
		}
	}
}
