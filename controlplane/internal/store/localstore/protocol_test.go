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
	for number, want := range map[byte]error{
		wire.Protocol + 1: wire.ErrNewerStore, wire.Oldest - 1: wire.ErrOlderStore,
	} {
		for _, crashed := range []bool{false, true} {
			path := filepath.Join(t.TempDir(), "weir.db")
			if err := os.WriteFile(path, ofEverything(t, crashed), 0o600); err != nil {
				t.Fatal(err)
			}
			if err := localstore.WriteProtocol(path, number); err != nil {
				t.Fatal(err)
			}
			before, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			_, err = localstore.Open(filepath.Dir(path), slog.New(slog.DiscardHandler), localstore.Options{})
			after, _ := os.ReadFile(path)
			if !errors.Is(err, want) || !bytes.Equal(before, after) {
				t.Errorf("protocol %d: %v; changed: %v", number, err, !bytes.Equal(before, after))
			}
		}
	}
}
